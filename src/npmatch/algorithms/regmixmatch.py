"""RegMixMatch: Optimizing Mixup Utilization in Semi-Supervised Learning. Han et al., AAAI 2025.

Idea: FreeMatch, and a second pass over mixed images. Very confident images are mixed with one another and learnt by
their hard labels; each other image is mixed with a very confident one, by a class-aware choice, and learnt softly.

    L = L_FreeMatch + L_SRM + L_CAM
    L_SRM = 1/μB Σ_{b: c_b ≥ τ_m} H(λ · ŷ_b + (1 − λ) · ŷ_j, p(y | mix(strong(u_b), strong(u_j)))),   c_j ≥ τ_m
    L_CAM = mean_{b: c_b < τ_m} c_b³ · mean_{b: c_b < τ_m} MSE(λ' · q_b + (1 − λ') · y_j, p(y | mix(strong(u_b), v_j)))

q is the prediction on the weak view, c = max q its confidence, ŷ = argmax q. v_j is a labelled image or the strong view
of a very confident one; a coin decides in each step whether its label y_j must be ŷ_b. Images are mixed by ResizeMix,
and λ is the share of pixels that an image keeps. Details as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.distributed.collective import all_gather, local_rows
from npmatch.heads import WeakNorm
from npmatch.objectives.losses import fairness_loss, masked_mean, one_hot, per_prediction
from npmatch.objectives.resize_mix import draw_box, draw_each, paste, shuffle_within
from npmatch.objectives.selection import MovingAverage, SelfAdaptiveThresholds
from npmatch.types import Batch, NonNegativeFloat, PositiveFloat, PositiveInt, Share, ShareBelowOne, Step, Task


class Mixed(NamedTuple):
    """n mixed images and their targets: one for each labelled image, if these are mixed, and each unlabelled one."""

    images: Tensor  # n C H W
    targets: Tensor  # n K
    is_hard: Tensor  # n, bool: confident images and labelled ones, mixed with one another (SRM); the others are CAM's


class RegMixMatch(Algorithm):
    """FreeMatch with ResizeMix of confident and of unconfident images."""

    @dataclass(frozen=True)
    class Config:
        """The hyperparameters of the authors' code for CIFAR-10; CIFAR-100 and STL-10 have τ_m 0.99."""

        decay: ShareBelowOne = 0.999  # decay of FreeMatch's moving averages
        min_threshold: Share = 0.0  # lower limit of the thresholds of the classes; 0.9 for SVHN
        max_threshold: Share = 1.0  # upper limit of the thresholds of the classes; 0.95 for SVHN
        unlabeled_weight: NonNegativeFloat = 1.0  # w_u, weight of FreeMatch's unlabelled loss
        fairness_weight: NonNegativeFloat = 0.01  # w_f, weight of FreeMatch's fairness loss
        mixing_confidence: Share = 0.999  # τ_m: least confidence of an image that is mixed by its hard label
        mixing_alpha: PositiveFloat = 1.0  # α: boxes of confident images are drawn from Beta(α, α)
        labeled_mixing: PositiveInt = 100  # labels per class from which labelled images are mixed with confident ones
        class_aware: bool = True  # whether the other images are mixed too (CAM); false for CIFAR-100
        class_aware_alpha: PositiveFloat = 16.0  # α of the boxes of the other images
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds FreeMatch's moving averages."""
        super().__init__(backbone, task, config)
        k, decay = task.num_classes, self.config.decay
        self.adaptive = SelfAdaptiveThresholds(k, decay)
        self.histogram = MovingAverage(torch.full((k,), 1 / k), decay)
        self.mixes_labeled = task.num_labeled >= self.config.labeled_mixing * k

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """FreeMatch's losses, then those of the mixed images."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)

        loss_x = F.cross_entropy(head(f_x), batch.y)

        with torch.no_grad():
            q = head(f_weak).softmax(-1)
            confidence, pseudo = q.max(-1)
            self.adaptive.update(q)  # first, so that the thresholds take this batch into account
            self.histogram(one_hot(pseudo, self.task.num_classes).mean(0))
            thresholds = self.adaptive.thresholds().clamp(c.min_threshold, c.max_threshold)
            keep = confidence >= thresholds[pseudo]
            fair = per_prediction(self.adaptive.class_probs.value, self.histogram.value)
        logits_strong = head(f_strong)
        loss_u = (keep * F.cross_entropy(logits_strong, pseudo, reduction="none")).mean()
        loss_f = fairness_loss(logits_strong, keep, fair)

        mixed = self.mix(all_gather(batch.x), batch.y, all_gather(u_strong), q)
        logits_mixed = head(self.features_of_mixed(mixed.images, len(q)))
        loss_hard = (mixed.is_hard * F.cross_entropy(logits_mixed, mixed.targets, reduction="none")).sum() / len(q)
        loss_soft = torch.zeros_like(loss_hard)
        if c.class_aware:
            errors = (logits_mixed.softmax(-1) - mixed.targets).square().mean(-1)
            # The authors' code averages the errors to one number before it weights them by the confidences.
            loss_soft = masked_mean(errors, ~mixed.is_hard) * masked_mean(confidence**3, ~mixed.is_hard[-len(q) :])

        loss = loss_x + c.unlabeled_weight * loss_u + c.fairness_weight * loss_f + loss_hard + loss_soft
        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "loss_fairness": loss_f,
            "loss_mixed_confident": loss_hard,
            "loss_mixed_others": loss_soft,
            "threshold": thresholds.mean(),
        }
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)

    @torch.no_grad()
    def mix(self, x: Tensor, y: Tensor, strong: Tensor, q: Tensor) -> Mixed:
        """Mixes labelled images B C H W and strong views U C H W with weak predictions q U K."""
        confidence, pseudo = q.max(-1)
        confident = confidence >= self.config.mixing_confidence
        images, labels = torch.cat([x, strong]), one_hot(torch.cat([y, pseudo]), self.task.num_classes).to(q.dtype)
        trusted = torch.cat([torch.ones_like(y, dtype=torch.bool), confident])

        first = 0 if self.mixes_labeled else len(y)  # images before it are not mixed by their own label
        is_hard = trusted[first:]
        mixed, targets = self.mix_confident(images[first:], labels[first:], is_hard)
        if self.config.class_aware:
            others, soft_targets = self.mix_others(strong, q, images, labels, trusted)
        else:
            others, soft_targets = strong, q  # without a loss; they are in the pass to keep its shape
        start = len(mixed) - len(strong)
        mixed[start:] = torch.where(confident[:, None, None, None], mixed[start:], others)
        targets[start:] = torch.where(confident[:, None], targets[start:], soft_targets)
        return Mixed(mixed, targets, is_hard)

    def mix_confident(self, images: Tensor, labels: Tensor, is_hard: Tensor) -> tuple[Tensor, Tensor]:
        """SRM: images n C H W and labels n K, of which those that are hard are mixed with one another."""
        box = draw_box(images, self.config.mixing_alpha)
        partner, share = shuffle_within(is_hard), box.kept_share()
        return paste(images, images[partner], box), share * labels + (1 - share) * labels[partner]

    def mix_others(
        self, strong: Tensor, q: Tensor, images: Tensor, labels: Tensor, trusted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """CAM: strong views and predictions q U K, mixed with trusted ones of `images` m C H W and `labels` m K."""
        any_class = torch.rand((), device=q.device) >= 0.5
        # Paper: partners of the two likeliest classes; here: of the likeliest, because the authors' code does so.
        same_class = q.argmax(-1)[:, None] == labels.argmax(-1)
        allowed = trusted & (same_class | any_class)
        box, partner = draw_box(strong, self.config.class_aware_alpha), draw_each(allowed)
        has_partner, share = allowed.any(-1), box.kept_share()
        mixed = torch.where(has_partner[:, None, None, None], paste(strong, images[partner], box), strong)
        targets = torch.where(has_partner[:, None], share * q + (1 - share) * labels[partner], q)
        return mixed, targets

    def features_of_mixed(self, images: Tensor, num_unlabeled: int) -> Tensor:
        """Features of mixed images, of which every rank has all, in a pass of their own: n C H W → n F."""
        parts = torch.split(images, [len(images) - num_unlabeled, num_unlabeled])
        return torch.cat(self.model.features_together(*(local_rows(part) for part in parts)))
