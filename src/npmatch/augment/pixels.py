"""Per-channel constants on the device, and normalisation."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values` on the device, copied there once: a captured graph must not copy from the host."""
    with torch.inference_mode(False):  # a tensor made in inference mode could not be used in training later
        return torch.tensor(values, dtype=dtype, device=device)


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x / 255 − mean) / std per channel: n C H W, uint8 → float32."""
    mean_, std_ = (constant(values, torch.float32, images.device).view(-1, 1, 1) for values in (mean, std))
    return images.float().div_(255).sub_(mean_).div_(std_)
