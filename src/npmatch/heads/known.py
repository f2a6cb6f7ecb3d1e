"""Which unlabelled images look like labelled ones, so that images of no known class can be kept out of training.

    d(x) = min over labelled images i of ‖f(x) − f_i‖ / ρ
    known(x) = d(x) ≤ t,    t: the value that d of a share q of labelled images, each without itself, stays below

ρ is the root mean square distance of labelled features from their mean. The confidence of a classifier does not tell
unknown images: whatever the class that two views of a digit are taken for among clothes, consistency soon makes it
confident. Distances do, as long as unknown images have not been trusted before, so they count from the first step on.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from npmatch.heads.memory import first_views

DECAY = 0.99  # of the moving average of t, which in one batch depends on few images


class KnownImages(nn.Module):
    """Remembers the feature of every labelled image and compares others with them."""

    features: Tensor  # N F: of each labelled image when it was last in a batch
    held: Tensor  # N, bool: which have been in a batch
    threshold: Tensor  # 0-d: t
    batches: Tensor  # 0-d int64: batches that t is made from

    def __init__(self, num_labeled: int, num_features: int, share: float) -> None:
        """`share` is q."""
        super().__init__()
        self.share = share
        self.register_buffer("features", torch.zeros(num_labeled, num_features))
        self.register_buffer("held", torch.zeros(num_labeled, dtype=torch.bool))
        self.register_buffer("threshold", torch.tensor(0.0))
        self.register_buffer("batches", torch.tensor(0))

    @torch.no_grad()
    def forward(self, f_x: Tensor, labeled: Tensor, f_u: Tensor) -> Tensor:
        """U, bool: which images U F are like known ones; first takes in the batch B F of labelled images `labeled` B.

        Every image counts as known while there are no two labelled ones to compare.
        """
        f_x, f_u = f_x.to(self.features.dtype), f_u.to(self.features.dtype)
        self.features[labeled] = f_x[first_views(labeled)]
        self.held.index_fill_(0, labeled, True)  # a captured graph may not write a number of the host by index
        rho = (f_x - f_x.mean(0)).square().sum(-1).mean().sqrt().clamp(min=torch.finfo(f_x.dtype).tiny)
        self._update(self._distance(f_x, labeled) / rho)
        return (self._distance(f_u) / rho <= self.threshold) | (self.batches == 0)

    def _distance(self, features: Tensor, labeled: Tensor | None = None) -> Tensor:
        """n: distance to the nearest labelled image other than `labeled` n; inf where there is none."""
        distance = torch.cdist(features, self.features).masked_fill(~self.held, torch.inf)
        if labeled is not None:
            distance = distance.scatter(1, labeled[:, None], torch.inf)
        return distance.amin(-1)

    def _update(self, distance: Tensor) -> None:
        """Takes the distances B of labelled images from others into t, but those that are inf."""
        count = distance.isfinite().sum()
        rank = ((count - 1) * self.share).round().long().clamp(min=0)
        quantile = distance.sort().values.gather(0, rank[None])[0]
        weight = (1 / (self.batches + 1.0)).clamp(min=1 - DECAY)  # a plain mean at first
        self.threshold.copy_(torch.where(count > 0, self.threshold.lerp(quantile, weight), self.threshold))
        self.batches.add_(count > 0)
