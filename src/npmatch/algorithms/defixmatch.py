"""DeFixMatch: Don't Fear the Unlabelled: Safe Semi-Supervised Learning via Debiasing. Schmutz et al., ICLR 2023.

Idea: FixMatch adds a term to the risk, which therefore has another expectation than that of labelled images alone. The
same term on labelled images, subtracted, removes this bias, and what unlabelled images change is the variance.

    L = L_s + λ · (ℓ_u(unlabelled) − ℓ_u(labelled))
    L_s = 1/2B Σ_b H(y_b, p(y | weak(x_b))) + H(y_b, p(y | strong(x_b)))
    ℓ_u = mean over images v of 1(max q_v ≥ τ) · H(argmax q_v, p(y | strong(v))),   q_v = p(y | weak(v))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from npmatch.algorithms.base import Algorithm
from npmatch.heads import WeakNorm
from npmatch.types import Batch, NonNegativeFloat, Share, Step, Views


class DeFixMatch(Algorithm):
    """FixMatch without the bias of its unlabelled loss."""

    views = Views(weak=1, strong=1, labeled_strong=1)

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters."""

        confidence: Share = 0.95  # τ: least confidence of a trusted pseudo-label
        unlabeled_weight: NonNegativeFloat = 0.5  # λ, weight of the unlabelled loss and of what is subtracted from it
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running

    config: Config

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """FixMatch's loss of unlabelled images less that of labelled ones, whose labels it does not use."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,), (x_strong,) = batch.weak, batch.strong, batch.x_strong
        f_x, f_weak, f_strong, f_x_strong = self.model.features_of_views(
            batch.x, u_weak, u_strong, c.weak_norm, x_strong
        )
        logits_x, logits_x_strong = head(f_x), head(f_x_strong)

        loss_x = (F.cross_entropy(logits_x, batch.y) + F.cross_entropy(logits_x_strong, batch.y)) / 2

        loss_u, pseudo, keep = fixmatch_loss(head(f_weak), head(f_strong), c.confidence)
        loss_debias, _, _ = fixmatch_loss(logits_x, logits_x_strong, c.confidence)

        loss = loss_x + c.unlabeled_weight * (loss_u - loss_debias)
        logs = {"loss_labeled": loss_x, "loss_unlabeled": loss_u, "loss_debias": loss_debias}
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)


def fixmatch_loss(logits_weak: Tensor, logits_strong: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """FixMatch's loss of n images, 0-d, with gradient by the strong views; pseudo-labels n, and which are trusted n."""
    confidence, pseudo = logits_weak.detach().softmax(-1).max(-1)
    keep = confidence >= threshold
    return (keep * F.cross_entropy(logits_strong, pseudo, reduction="none")).mean(), pseudo, keep
