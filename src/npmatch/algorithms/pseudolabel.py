"""Pseudo-Label: The Simple and Efficient Semi-Supervised Learning Method for Deep Neural Networks. Lee, 2013.

Idea: where the network is confident about an unlabelled image, its answer is the label of the same view of that image.

    L = L_s + λ(t) · L_u
    L_s = 1/B Σ_b H(y_b, p(y | weak(x_b)))
    L_u = 1/U Σ_b 1(max q_b ≥ τ) · H(argmax q_b, q_b),   q_b = p(y | weak(u_b))

λ(t) grows linearly from 0 to λ_u over the first part of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch.algorithms.base import Algorithm
from npmatch.heads import frozen_statistics
from npmatch.objectives.losses import ramp_up
from npmatch.types import Adjustment, Batch, NonNegativeFloat, Share, Step, Views


class PseudoLabel(Algorithm):
    """Hard pseudo-labels for the view that they were predicted from."""

    views = Views(weak=1, strong=0)
    settings: ClassVar[dict[str, Any]] = {"training.unlabeled_ratio": 1}  # as many unlabelled as labelled images

    # Paper: no threshold, and a weight that grows from 0 to 3 between epochs 100 and 600 (from memory); here: the
    # settings of TorchSSL and USB, because those gave the error rates that comparisons cite.
    @dataclass(frozen=True)
    class Config:
        """The settings under which Pseudo-Label is a baseline of the FixMatch family."""

        confidence: Share = 0.95  # τ: least confidence of a trusted pseudo-label
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_u, weight of the unlabelled loss
        ramp: Share = 0.4  # share of training over which λ_u grows from 0
        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

    config: Config

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """One pass for the labelled images, one for the unlabelled."""
        c, head = self.config, self.model.head
        (u_weak,) = batch.weak
        loss_x = F.cross_entropy(self.adjust.labeled(head(self.model.features(batch.x))), batch.y)  # L_s

        with frozen_statistics(self.model):  # only labelled images update the running statistics
            logits_u = head(self.model.features(u_weak))
        with torch.no_grad():
            confidence, pseudo = logits_u.softmax(-1).max(-1)
            keep = confidence >= c.confidence
        logits_u = self.adjust.unlabeled(logits_u, pseudo)
        loss_u = (keep * F.cross_entropy(logits_u, pseudo, reduction="none")).mean()  # L_u: over all U

        weight = c.unlabeled_weight * ramp_up(progress, c.ramp)  # λ(t)
        loss = loss_x + weight * loss_u
        logs = {"loss_labeled": loss_x, "loss_unlabeled": loss_u, "unlabeled_weight": weight}
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)
