"""AdaMatch: A Unified Approach to Semi-Supervised Learning and Domain Adaptation. Berthelot et al., ICLR 2022.

Idea: FixMatch in which predictions on unlabelled images are aligned with those on labelled images, a pseudo-label is
trusted if it is nearly as confident as those are, and logits of labelled images do not depend on their companions in
the batch.

    L = L_s + λ(t) · L_u
    L_s = 1/2B Σ_b H(y_b, softmax(z_b^weak)) + H(y_b, softmax(z_b^strong))
    L_u = 1/μB Σ_b 1(max a_b ≥ c_τ) · H(argmax a_b, p(y | strong(u_b)))
    z   = z' + r · (z'' − z'),   r ~ U[0, 1] for each logit
    a_b = N(q_b · E_x / E_u),   q_b = p(y | weak(u_b)),   c_τ = τ · mean_b max softmax(z_b^weak)   N: normalise to sum 1
    λ(t) = ½ − ½ cos(2πt) up to t = ½, then 1

z' are logits of labelled images whose batch norm sees all views, z'' of a pass over labelled images alone. E_x is the
moving average of predictions on labelled images, E_u the mean prediction on unlabelled ones over a window of batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import WeakNorm, frozen_statistics
from npmatch.objectives.losses import ramp_up
from npmatch.objectives.selection import MovingAverage, WindowAlignment
from npmatch.types import Batch, NonNegativeFloat, Share, ShareBelowOne, Size, Step, Task, Views


class AdaMatch(Algorithm):
    """Aligned hard pseudo-labels above a threshold relative to the confidence on labelled images."""

    # Paper: CTAugment, weight decay 1e-3 and a cosine that ends at a quarter of the learning rate; here: the streams'
    # policy (RandAugment) and the recipe's settings, because comparisons share them.
    views = Views(weak=1, strong=1, labeled_strong=1)
    settings: ClassVar[dict[str, Any]] = {"training.unlabeled_ratio": 3}

    @dataclass(frozen=True)
    class Config:
        """The hyperparameters of the authors' code for semi-supervised learning."""

        relative_confidence: Share = 0.9  # τ: least confidence, as a share of the mean confidence on labelled images
        decay: ShareBelowOne = 0.999  # decay of the moving average E_x
        window: Size = 128  # number of batches whose mean prediction is E_u
        unlabeled_weight: NonNegativeFloat = 1.0  # λ(1), weight of the unlabelled loss
        ramp: Share = 0.5  # share of training over which the weight grows from 0
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the mean predictions E_x and E_u, which start uniform."""
        super().__init__(backbone, task, config)
        c, k = self.config, task.num_classes
        self.labeled_prediction = MovingAverage(torch.full((k,), 1 / k), c.decay)  # E_x
        self.alignment = WindowAlignment(c.window, k, starts_full=True)  # by E_u

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """The step of the authors' code, in its order."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,), (x_strong,) = batch.weak, batch.strong, batch.x_strong
        f_x, f_weak, f_strong, f_x_strong = self.model.features_of_views(
            batch.x, u_weak, u_strong, c.weak_norm, x_strong
        )
        with frozen_statistics(self.model):  # the statistics of this pass are not those of the unlabelled images
            f_alone = torch.cat(self.model.features_together(batch.x, x_strong))

        z_joint, z_alone = head(torch.cat([f_x, f_x_strong])), head(f_alone)  # z', z''
        z_weak, z_strong = torch.lerp(z_joint, z_alone, torch.rand_like(z_joint)).chunk(2)
        loss_x = (F.cross_entropy(z_weak, batch.y) + F.cross_entropy(z_strong, batch.y)) / 2

        with torch.no_grad():
            p_x = z_weak.softmax(-1)
            threshold = c.relative_confidence * p_x.amax(-1).mean()  # c_τ, of this step
            a = self.alignment(head(f_weak).softmax(-1), self.labeled_prediction(p_x.mean(0)))
            confidence, pseudo = a.max(-1)
            keep = confidence >= threshold
        loss_u = (keep * F.cross_entropy(head(f_strong), pseudo, reduction="none")).mean()  # over all μB

        weight = c.unlabeled_weight * (1 - torch.cos(math.pi * ramp_up(progress, c.ramp))) / 2  # λ(t)
        loss = loss_x + weight * loss_u
        logs = {"loss_labeled": loss_x.detach(), "loss_unlabeled": loss_u.detach(), "threshold": threshold}
        return Step(loss, logs, pseudo, keep)
