"""Unsupervised Data Augmentation for Consistency Training (UDA). Xie et al., NeurIPS 2020.

Idea: the prediction on a weak view, sharpened, is a soft target for the strong view.

    L = CE(y, p(y | weak(x))) + λ · 1/U Σ_b 1(max q_b > β) · CE(q_b^sharp, p(y | strong(u_b)))       (Eq. 1)
    q_b = softmax(z_b),   q_b^sharp = softmax(z_b / τ),   z_b the logits of weak(u_b)

Training-signal annealing (TSA) leaves out labelled images whose own class already has a probability above
η = α·(1 − 1/K) + 1/K, and α grows from about 0 to 1 with progress t: t, 1 − exp(−5t) or exp(5(t − 1)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch.algorithms.base import Algorithm
from npmatch.heads import WeakNorm
from npmatch.objectives.losses import masked_mean
from npmatch.types import Adjustment, Batch, NonNegativeFloat, PositiveFloat, Share, Step

Annealing = Literal["off", "linear", "log", "exp"]


class UDA(Algorithm):
    """Soft, sharpened targets from confident weak views."""

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters for images."""

        temperature: PositiveFloat = 0.4  # τ, temperature that sharpens the targets
        confidence: Share = 0.8  # β: predictions of higher confidence are used as targets
        unlabeled_weight: NonNegativeFloat = 1.0  # λ, weight of the unlabelled loss
        annealing: Annealing = "off"  # schedule of TSA: log for many labels, exp for very few
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running
        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

    config: Config

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Eq. 1 with sharpening, masking and annealing."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)

        each_x = F.cross_entropy(self.adjust.labeled(head(f_x)), batch.y, reduction="none")
        learns = torch.ones_like(batch.y, dtype=torch.bool)
        if c.annealing != "off":
            p_y = torch.exp(-each_x.detach())  # p(y | x) of the true class
            learns = p_y < signal_threshold(c.annealing, progress, self.task.num_classes)
        loss_x = masked_mean(each_x, learns)

        with torch.no_grad():
            logits_weak = head(f_weak)
            target = (logits_weak / c.temperature).softmax(-1)  # q^sharp
            confidence, pseudo = logits_weak.softmax(-1).max(-1)  # of q, not of q^sharp
            keep = confidence > c.confidence
        # The paper's KL(q^sharp ‖ p) differs from this cross-entropy by a constant, the target's entropy.
        logits_u = self.adjust.unlabeled(head(f_strong), pseudo)
        loss_u = (keep * F.cross_entropy(logits_u, target, reduction="none")).mean()

        loss = loss_x + c.unlabeled_weight * loss_u  # Eq. 1
        logs = {"loss_labeled": loss_x.detach(), "loss_unlabeled": loss_u.detach()}
        if c.annealing != "off":
            logs["labeled_share"] = learns.float().mean()
        return Step(loss, logs, pseudo, keep)


def signal_threshold(annealing: Literal["linear", "log", "exp"], progress: Tensor, num_classes: int) -> Tensor:
    """η, 0-d: labelled images whose own class has a higher probability are left out."""
    match annealing:
        case "linear":
            alpha = progress
        case "log":
            alpha = 1 - torch.exp(-5 * progress)
        case "exp":
            alpha = torch.exp(5 * (progress - 1))
    return alpha * (1 - 1 / num_classes) + 1 / num_classes
