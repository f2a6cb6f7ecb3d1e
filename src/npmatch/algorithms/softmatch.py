"""SoftMatch: Addressing the Quantity-Quality Trade-off in Semi-supervised Learning. Chen et al., ICLR 2023.

Idea: a threshold loses many right pseudo-labels, so none is left out; each has a weight, which is 1 where the network
is more confident than on average and falls like a Gaussian below.

    L = L_s + λ_u · L_u
    L_s = 1/B  Σ_b H(y_b, p(y | weak(x_b)))
    L_u = 1/μB Σ_b λ(a_b) · H(argmax q_b, p(y | strong(u_b))),   q_b = p(y | weak(u_b))
    λ(a) = exp(−n² · min(max a − μ, 0)² / 2σ²),   a_b = N(q_b / E[q])                 N: normalise to sum 1

μ and σ² are moving averages of the mean and the variance of max q_b in each batch, and E[q] is one of the mean of q_b.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import WeakNorm
from npmatch.objectives.selection import MovingAverage, TruncatedGaussian, align
from npmatch.types import Adjustment, Batch, NonNegativeFloat, PositiveFloat, ShareBelowOne, Step, Task


class SoftMatch(Algorithm):
    """Hard pseudo-labels, each weighted by its confidence."""

    @dataclass(frozen=True)
    class Config:
        """The hyperparameters of the paper and of its code in TorchSSL."""

        decay: ShareBelowOne = 0.999  # m, decay of the moving averages μ, σ² and E[q]
        sigmas: PositiveFloat = 2.0  # n: the weights are a Gaussian of standard deviation σ / n
        alignment: bool = True  # a = N(q / E[q]), for balanced classes; false: a = q
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_u, weight of the unlabelled loss
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running
        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the moving averages."""
        super().__init__(backbone, task, config)
        c, k = self.config, task.num_classes
        self.gaussian = TruncatedGaussian(k, c.decay, c.sigmas)
        self.mean_prediction = MovingAverage(torch.full((k,), 1 / k), c.decay)  # E[q]

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Algorithm 1 of the paper."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)

        loss_x = F.cross_entropy(self.adjust.labeled(head(f_x)), batch.y)

        with torch.no_grad():
            q = head(f_weak).softmax(-1)
            confidence, pseudo = q.max(-1)
            self.gaussian.update(confidence)  # of q: alignment concerns the weights only
            mean_prediction = self.mean_prediction(q.mean(0))
            # The target is uniform in the paper (from memory) and in USB, the labelled images' mean in TorchSSL.
            aligned = align(q, mean_prediction) if c.alignment else q
            weight = self.gaussian.weights(aligned.amax(-1))
        logits_u = self.adjust.unlabeled(head(f_strong), pseudo)
        loss_u = (weight * F.cross_entropy(logits_u, pseudo, reduction="none")).mean()  # over all μB

        loss = loss_x + c.unlabeled_weight * loss_u
        logs = {
            "loss_labeled": loss_x.detach(),
            "loss_unlabeled": loss_u.detach(),
            "mean_confidence": self.gaussian.mean.value.clone(),
            "confidence_std": self.gaussian.variance.value.sqrt(),
        }
        return Step(loss, logs, pseudo, weight)
