"""FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning. Wang et al., ICLR 2023.

Idea: the threshold of confidence rises by itself, as the network becomes confident, for each class by its own progress;
a second loss keeps the predictions of trusted images from collapsing to few classes.

    L = L_s + w_u · L_u + w_f · L_f
    L_s = 1/B  Σ_b H(y_b, p(y | weak(x_b)))
    L_u = 1/μB Σ_b 1(max q_b ≥ τ(argmax q_b)) · H(argmax q_b, p(y | strong(u_b))),   q_b = p(y | weak(u_b))
    L_f = Σ_c N(p̃ / h̃)_c · log N(p̄ / h̄)_c                                              N: normalise to sum 1
    τ(c) = τ · p̃(c) / max p̃

τ, p̃ and h̃ are moving averages over the weak views of each batch: of the mean confidence, the mean prediction and the
histogram of pseudo-labels. p̄ and h̄ are the mean prediction on the strong views of trusted images and the histogram of
their classes in this batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import WeakNorm
from npmatch.objectives.losses import fairness_loss, one_hot, per_prediction
from npmatch.objectives.selection import MovingAverage, SelfAdaptiveThresholds
from npmatch.types import Adjustment, Batch, NonNegativeFloat, Share, ShareBelowOne, Step, Task


class FreeMatch(Algorithm):
    """Hard pseudo-labels above thresholds that adapt themselves, and a fairness loss."""

    @dataclass(frozen=True)
    class Config:
        """The hyperparameters of the paper and of its code in TorchSSL."""

        decay: ShareBelowOne = 0.999  # λ, decay of the moving averages τ, p̃ and h̃
        min_threshold: Share = 0.0  # lower limit of the thresholds of the classes; 0.9 for SVHN
        max_threshold: Share = 1.0  # upper limit of the thresholds of the classes; 0.95 for SVHN
        unlabeled_weight: NonNegativeFloat = 1.0  # w_u, weight of the unlabelled loss
        fairness_weight: NonNegativeFloat = 0.01  # w_f, weight of the fairness loss
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running
        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the moving averages τ and p̃, which make the thresholds, and h̃."""
        super().__init__(backbone, task, config)
        k, decay = task.num_classes, self.config.decay
        self.adaptive = SelfAdaptiveThresholds(k, decay)
        self.histogram = MovingAverage(torch.full((k,), 1 / k), decay)  # h̃

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Algorithm 1 of the paper."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)

        loss_x = F.cross_entropy(self.adjust.labeled(head(f_x)), batch.y)

        with torch.no_grad():
            q = head(f_weak).softmax(-1)
            confidence, pseudo = q.max(-1)
            self.adaptive.update(q)  # first, so that the thresholds take this batch into account
            self.histogram(one_hot(pseudo, self.task.num_classes).mean(0))
            thresholds = self.adaptive.thresholds().clamp(c.min_threshold, c.max_threshold)
            keep = confidence >= thresholds[pseudo]
            target = per_prediction(self.adaptive.class_probs.value, self.histogram.value)  # N(p̃ / h̃)
        logits_strong = head(f_strong)
        logits_u = self.adjust.unlabeled(logits_strong, pseudo)
        loss_u = (keep * F.cross_entropy(logits_u, pseudo, reduction="none")).mean()  # over all μB
        loss_f = fairness_loss(logits_strong, keep, target)

        loss = loss_x + c.unlabeled_weight * loss_u + c.fairness_weight * loss_f
        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "loss_fairness": loss_f,
            "threshold": thresholds.mean(),
        }
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)
