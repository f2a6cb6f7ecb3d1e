"""FlexMatch: Boosting Semi-Supervised Learning with Curriculum Pseudo Labeling. Zhang et al., NeurIPS 2021.

Idea: a class that is learnt less needs less confidence, so each class has its own threshold, which rises with the
number of images that were predicted to be of this class.

    L = L_s + λ · L_u
    L_s = 1/B  Σ_b H(y_b, p(y | weak(x_b)))
    L_u = 1/μB Σ_b 1(max q_b > T(argmax q_b)) · H(argmax q_b, p(y | strong(u_b))),   q_b = p(y | weak(u_b))
    T(c) = M(β(c)) · τ,   β(c) = σ(c) / max(max_c σ(c), #unused),   M(β) = β / (2 − β)

σ(c) is the number of unlabelled images whose last prediction above τ was c (`selection.Curriculum`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import WeakNorm
from npmatch.objectives.selection import Curriculum
from npmatch.types import Adjustment, Batch, NonNegativeFloat, Share, Step, Task


class FlexMatch(Algorithm):
    """Hard pseudo-labels above a threshold for each class."""

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters."""

        confidence: Share = 0.95  # τ: upper limit of the thresholds of the classes
        unlabeled_weight: NonNegativeFloat = 1.0  # λ, weight of the unlabelled loss
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running
        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the curriculum to the model: one integer per unlabelled image."""
        super().__init__(backbone, task, config)
        self.curriculum = Curriculum(task.num_unlabeled, task.num_classes, self.config.confidence)

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Algorithm 1 of the paper."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)

        loss_x = F.cross_entropy(self.adjust.labeled(head(f_x)), batch.y)

        with torch.no_grad():
            confidence, pseudo = head(f_weak).softmax(-1).max(-1)
            keep = confidence > self.curriculum.thresholds()[pseudo]  # T(c), before this batch changes it
            self.curriculum.update(batch.index, pseudo, confidence > c.confidence)  # σ(c)
        logits_u = self.adjust.unlabeled(head(f_strong), pseudo)
        loss_u = (keep * F.cross_entropy(logits_u, pseudo, reduction="none")).mean()  # over all μB

        loss = loss_x + c.unlabeled_weight * loss_u
        logs = {"loss_labeled": loss_x.detach(), "loss_unlabeled": loss_u.detach()}
        return Step(loss, logs, pseudo, keep)
