"""FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence. Sohn et al., NeurIPS 2020.

Idea: where the network is confident on a weak view, its answer is the label of the strong view.

    L = ℓ_s + λ_u · ℓ_u
    ℓ_s = 1/B  Σ_b H(y_b, p(y | weak(x_b)))                                                          (Eq. 3)
    ℓ_u = 1/μB Σ_b 1(max q_b ≥ τ) · H(argmax q_b, p(y | strong(u_b))),   q_b = p(y | weak(u_b))      (Eq. 4)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch.algorithms.base import Algorithm
from npmatch.heads import WeakNorm
from npmatch.types import Adjustment, Batch, NonNegativeFloat, Share, Step


class FixMatch(Algorithm):
    """Hard pseudo-labels above one fixed threshold."""

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters."""

        confidence: Share = 0.95  # τ: least confidence of a trusted pseudo-label
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_u, weight of the unlabelled loss
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running
        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

    config: Config

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Algorithm 1 of the paper."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)

        loss_x = F.cross_entropy(self.adjust.labeled(head(f_x)), batch.y)  # Eq. 3

        with torch.no_grad():
            confidence, pseudo = head(f_weak).softmax(-1).max(-1)
            keep = confidence >= c.confidence
        logits_u = self.adjust.unlabeled(head(f_strong), pseudo)
        loss_u = (keep * F.cross_entropy(logits_u, pseudo, reduction="none")).mean()  # Eq. 4: over all μB

        loss = loss_x + c.unlabeled_weight * loss_u
        logs = {"loss_labeled": loss_x.detach(), "loss_unlabeled": loss_u.detach()}
        return Step(loss, logs, pseudo, keep)
