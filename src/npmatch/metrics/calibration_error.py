"""Calibration error: is a confidence of 90 % right nine times in ten, and is high uncertainty a likely error?

ECE = Σ_m |B_m|/n · |accuracy(B_m) − mean confidence(B_m)|
UCE = Σ_m |B_m|/n · |error(B_m) − mean ũ(B_m)|,  ũ = H(p̄) / log K
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from npmatch.errors import NPMatchError


@dataclass(frozen=True)
class Reliability:
    """A score and its outcome, averaged in equal-width bins of the score; NaN where a bin is empty."""

    edges: Tensor  # bins + 1, in [0, 1]
    count: Tensor  # bins, int64
    score: Tensor  # bins: mean confidence, or mean normalised uncertainty
    outcome: Tensor  # bins: accuracy, or error rate

    @property
    def gap(self) -> float:
        """Calibration error, a fraction: |score − outcome| averaged over images."""
        weight = self.count.double() / self.count.sum()
        return float((weight * (self.score - self.outcome).abs()).nan_to_num().sum())


def expected_calibration_error(probs: Tensor, y: Tensor, bins: int = 15) -> float:
    """ECE of the likeliest class, a fraction in [0, 1]; probs N K, y N."""
    return reliability_bins(probs, y, bins).gap


def uncertainty_calibration_error(entropy: Tensor, wrong: Tensor, num_classes: int, bins: int = 15) -> float:
    """Expected UCE, a fraction in [0, 1]; entropy N in nats, wrong N bool."""
    return uncertainty_bins(entropy, wrong, num_classes, bins).gap


def reliability_bins(probs: Tensor, y: Tensor, bins: int = 15) -> Reliability:
    """Confidence against accuracy in bins [a, b), the last one closed, as ECE counts them; probs N K, y N."""
    confidence, label = probs.max(-1)
    return _averages(confidence.clamp(0.0, 1.0), label == y, bins, right_closed=False)


def uncertainty_bins(entropy: Tensor, wrong: Tensor, num_classes: int, bins: int = 15) -> Reliability:
    """Normalised uncertainty against error in bins (a, b], with ũ = 0 in the first; entropy N in nats."""
    if num_classes < 2:
        raise NPMatchError(f"uncertainty is normalised by log K, which needs K ≥ 2, not {num_classes}")
    normalised = (entropy.double() / math.log(num_classes)).clamp(0.0, 1.0)
    return _averages(normalised, wrong, bins, right_closed=True)


def _averages(score: Tensor, outcome: Tensor, bins: int, right_closed: bool) -> Reliability:
    """Means of a score in [0, 1] and of its outcome, bin by bin of the score."""
    edges = torch.linspace(0, 1, bins + 1, dtype=score.dtype, device=score.device)
    # Only the inner edges separate bins, so 0 falls into the first bin and 1 into the last one.
    bin_of = torch.bucketize(score, edges[1:-1], right=not right_closed)
    count = torch.bincount(bin_of, minlength=bins)
    score_sum = torch.bincount(bin_of, weights=score.double(), minlength=bins)
    outcome_sum = torch.bincount(bin_of, weights=outcome.double(), minlength=bins)
    return Reliability(edges.double(), count, score_sum / count, outcome_sum / count)
