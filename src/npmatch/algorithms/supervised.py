"""Supervised baseline: the same network trained on the labelled images only.

L = CE(y, p(y | weak(x)))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from npmatch.algorithms.base import Algorithm
from npmatch.types import Adjustment, Batch, Step, Views


class Supervised(Algorithm):
    """Cross-entropy on weak views of labelled images; unlabelled images are not used."""

    views = Views(weak=0, strong=0)

    @dataclass(frozen=True)
    class Config:
        """No hyperparameters but the one for uneven classes."""

        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

    config: Config

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Plain cross-entropy."""
        logits = self.model.head(self.model.features(batch.x))
        loss = F.cross_entropy(self.adjust.labeled(logits), batch.y)
        return Step(loss, {"loss_labeled": loss.detach()})
