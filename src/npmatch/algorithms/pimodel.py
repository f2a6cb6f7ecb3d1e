"""Π-model: Temporal Ensembling for Semi-Supervised Learning. Laine & Aila, ICLR 2017.

Idea: two views of an image, seen by a network with its own noise each time, must give the same prediction.

    L = L_s + λ(t) · L_u
    L_s = 1/B  Σ_b H(y_b, p(y | weak(x_b)))
    L_u = 1/UK Σ_b ‖p(y | weak₁(u_b)) − p(y | weak₂(u_b))‖²

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
from npmatch.types import Batch, NonNegativeFloat, Share, Step, Views


class PiModel(Algorithm):
    """The squared error between the predictions of two weak views."""

    views = Views(weak=2, strong=0)
    settings: ClassVar[dict[str, Any]] = {"training.unlabeled_ratio": 1}  # as many unlabelled as labelled images

    # Paper: a Gaussian ramp over the first 80 epochs (from memory); here: the settings of TorchSSL and USB, because
    # those gave the error rates that comparisons cite.
    @dataclass(frozen=True)
    class Config:
        """The settings under which the Π-model is a baseline of the FixMatch family."""

        unlabeled_weight: NonNegativeFloat = 10.0  # λ_u, weight of the unlabelled loss
        ramp: Share = 0.4  # share of training over which λ_u grows from 0

    config: Config

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """One pass for the labelled images, and one for each view of the unlabelled."""
        c, head = self.config, self.model.head
        u_first, u_second = batch.weak
        loss_x = F.cross_entropy(head(self.model.features(batch.x)), batch.y)  # L_s

        # Paper: the gradient flows through both views (from memory); here: through the first one alone, as in TorchSSL,
        # because its error rates are those that comparisons cite.
        with frozen_statistics(self.model):  # only labelled images update the running statistics
            p_first = head(self.model.features(u_first)).softmax(-1)
            with torch.no_grad():
                p_second = head(self.model.features(u_second)).softmax(-1)
        loss_u = (p_first - p_second).square().mean()  # L_u: over images and classes

        weight = c.unlabeled_weight * ramp_up(progress, c.ramp)  # λ(t)
        loss = loss_x + weight * loss_u
        logs = {"loss_labeled": loss_x, "loss_unlabeled": loss_u, "unlabeled_weight": weight}
        pseudo = p_second.argmax(-1)
        keep = torch.ones_like(pseudo, dtype=torch.bool)  # every prediction is a target
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)
