"""A score for images unlike anything seen: how far their features lie from those of training images.

The distance to the fifth nearest of up to 2,000 training images, in features of unit variance (Sun et al.,
Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022, without their projection to the sphere: how long a
feature vector is tells much here). No label is needed. A training image's own score leaves itself out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npmatch.errors import NPMatchError

NEIGHBOURS = 5
MOST = 2000  # training images to measure against
QUANTILE = 0.99  # of the training images' own scores, above which an image is flagged


@dataclass(frozen=True)
class Novelty:
    """Training features to measure against."""

    features: Tensor  # M F, standardised
    mean: Tensor  # F
    scale: Tensor  # F
    own: Tensor  # M: scores of the training images themselves, sorted

    @staticmethod
    def fit(features: Tensor) -> Novelty:
        """From features M F of training images."""
        if len(features) < 2:
            raise NPMatchError("ood: at least two training images are needed to measure distances from")
        mean, scale = features.mean(0), features.std(0).clamp_min(1e-6)
        standard = (features - mean) / scale
        own = _distance(standard, standard, min(NEIGHBOURS, len(features) - 1) + 1)  # the nearest is the image itself
        return Novelty(standard, mean, scale, own.sort().values)

    def score(self, features: Tensor) -> Tensor:
        """N F → N: the larger, the less like a training image."""
        standard = (features - self.mean) / self.scale
        return _distance(standard, self.features, min(NEIGHBOURS, len(self.features)))

    def limit(self, quantile: float = QUANTILE) -> float:
        """The score that this share of the training images stays below."""
        if not 0 < quantile < 1:
            raise NPMatchError(f"ood-quantile={quantile}: give a number between 0 and 1, for example {QUANTILE}")
        return float(self.own.double().quantile(quantile))

    def tensors(self) -> dict[str, Tensor]:
        """For saving; `Novelty(**tensors)` is the way back."""
        return {"features": self.features, "mean": self.mean, "scale": self.scale, "own": self.own}


def reference_positions(n: int) -> Tensor:
    """At most MOST of n images, evenly spaced."""
    return torch.linspace(0, n - 1, min(n, MOST), dtype=torch.float64).round().long()


def _distance(features: Tensor, reference: Tensor, neighbour: int) -> Tensor:
    """The distance to the `neighbour`-th nearest, a thousand images at a time so that memory stays small."""
    parts = [torch.cdist(part, reference).kthvalue(neighbour, dim=1).values for part in torch.split(features, 1000)]
    return torch.cat(parts) if parts else features.new_zeros(0)
