"""Uncertainty in words."""

from __future__ import annotations

import math
from typing import Any

# Up to this share of the largest uncertainty, log K → what a person would say.
WORDS = ((0.05, "very sure"), (0.25, "fairly sure"), (0.55, "unsure"), (math.inf, "at a loss"))


def uncertainty(entropy: float, num_classes: int) -> dict[str, Any]:
    """An entropy in nats, as a share of the largest there is, and in words."""
    share = min(1.0, max(0.0, entropy) / math.log(num_classes))
    return {"entropy": entropy, "share": share, "sureness": next(word for most, word in WORDS if share <= most)}
