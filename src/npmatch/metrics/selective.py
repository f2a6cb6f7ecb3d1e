"""Selective prediction: the error rate of a model that abstains on uncertain images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npmatch.metrics.matching import matched
from npmatch.types import Prediction


@dataclass(frozen=True)
class RiskCoverage:
    """The risk–coverage curve, from the most certain image to all N images."""

    coverage: Tensor  # N, float64: 1/N, 2/N, …, 1
    risk: Tensor  # N, float64: error rate among the images covered

    @property
    def area(self) -> float:
        """AURC, a fraction: the risk averaged over all coverages."""
        return float(self.risk.mean())


def risk_coverage(prediction: Prediction, y: Tensor) -> RiskCoverage:
    """Error rate of the n images of lowest entropy, for n = 1…N."""
    y = matched(prediction, y)
    entropy, order = prediction.entropy.sort(stable=True)
    wrong = (prediction.label != y).double()[order]
    # Images of equal entropy have no order (a saturated model has thousands at entropy 0): each counts as the
    # mean of its group, which is the average over random orders.
    _, group, size = torch.unique_consecutive(entropy, return_inverse=True, return_counts=True)
    wrong = (torch.bincount(group, weights=wrong) / size)[group]
    covered = torch.arange(1, len(y) + 1, dtype=torch.float64, device=wrong.device)
    return RiskCoverage(coverage=covered / len(y), risk=wrong.cumsum(0) / covered)


def aurc(prediction: Prediction, y: Tensor) -> float:
    """Area under the risk–coverage curve, a fraction; lower is better, the error rate for useless entropies."""
    return risk_coverage(prediction, y).area
