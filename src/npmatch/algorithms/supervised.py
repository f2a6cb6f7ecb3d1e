"""Supervised baseline: the same network trained on the labelled images only.

L = CE(y, p(y | weak(x)))
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from npmatch.algorithms.base import Algorithm
from npmatch.types import Batch, Step, Views


class Supervised(Algorithm):
    """Cross-entropy on weak views of labelled images; unlabelled images are not used."""

    views = Views(weak=0, strong=0)

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Plain cross-entropy."""
        logits = self.model.head(self.model.features(batch.x))
        loss = F.cross_entropy(logits, batch.y)
        return Step(loss, {"loss_labeled": loss.detach()})
