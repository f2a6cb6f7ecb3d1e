"""Out-of-distribution (OOD) score: the distance of an image's features to those of training images.

The score is the distance to the fifth nearest of up to 2,000 training images, in features of unit variance. A training
image's own score leaves out the image itself. No labels are needed.

Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npmatch.errors import NPMatchError

NEIGHBOURS = 5
MAX_IMAGES = 2000  # training images to measure distances to
QUANTILE = 0.99  # quantile of the training images' own scores; images above it are flagged


@dataclass(frozen=True)
class Novelty:
    """Features of n training images, and the scores computed from distances to them."""

    features: Tensor  # n F, standardised
    mean: Tensor  # F
    scale: Tensor  # F
    own: Tensor  # n: scores of the training images themselves, sorted

    @staticmethod
    def fit(features: Tensor) -> Novelty:
        """A score that is fitted to the features n F of training images."""
        if len(features) < 2:
            raise NPMatchError("ood: at least two training images are needed to measure distances from")
        # Paper: features on the unit sphere; here: standardised, because the length of a feature vector is informative.
        mean, scale = features.mean(0), features.std(0).clamp_min(1e-6)
        standard = (features - mean) / scale
        own = _distance(standard, standard, min(NEIGHBOURS, len(features) - 1) + 1)  # the nearest is the image itself
        return Novelty(standard, mean, scale, own.sort().values)

    def score(self, features: Tensor, neighbours: int = NEIGHBOURS) -> Tensor:
        """Features N F → scores N; the larger the score, the less the image resembles a training image.

        `limit` is that of scores with the default number of neighbours.
        """
        standard = (features - self.mean) / self.scale
        return _distance(standard, self.features, min(neighbours, len(self.features)))

    def limit(self, quantile: float = QUANTILE) -> float:
        """The score below which this share of the training images lies."""
        if not 0 < quantile < 1:
            raise NPMatchError(f"ood-quantile={quantile}: give a number between 0 and 1, for example {QUANTILE}")
        return float(self.own.double().quantile(quantile))

    def tensors(self) -> dict[str, Tensor]:
        """The fields as tensors to save; `Novelty(**tensors)` restores them."""
        return {"features": self.features, "mean": self.mean, "scale": self.scale, "own": self.own}


def reference_positions(n: int, most: int = MAX_IMAGES) -> Tensor:
    """Evenly spaced positions of at most `most` among n images."""
    return torch.linspace(0, n - 1, min(n, most), dtype=torch.float64).round().long()


def _distance(features: Tensor, reference: Tensor, neighbour: int) -> Tensor:
    """Distances N to the `neighbour`-th nearest reference row, for a thousand images at a time to limit memory."""
    parts = [torch.cdist(part, reference).kthvalue(neighbour, dim=1).values for part in torch.split(features, 1000)]
    return torch.cat(parts) if parts else features.new_zeros(0)
