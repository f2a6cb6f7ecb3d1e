"""Dash: Semi-Supervised Learning with Dynamic Thresholding. Xu et al., ICML 2021.

Idea: pseudo-labels whose loss is below a threshold are used, and the threshold falls with training, so that many are
used at first and only good ones at the end.

    L = L_s + λ · L_u
    L_s = 1/B Σ_b H(y_b, p(y | weak(x_b)))
    L_u = mean over kept images of H(t_b, p(y | strong(u_b))),   t_b = softmax(w_b / T), w_b the logits of weak(u_b)
    image b is kept where H(argmax q_b, q_b) = −log max q_b < ρ,   q_b = softmax(w_b)
    ρ = max(ρ̂ · γ^−k, ρ_min) in the k-th interval after the warm-up, in which all images are kept

ρ̂ is the mean loss of unlabelled images at the end of the warm-up. Once ρ has reached ρ_min, t_b is the hard label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import WeakNorm
from npmatch.objectives.losses import masked_mean, one_hot
from npmatch.types import Adjustment, Batch, NonNegativeFloat, PositiveFloat, Share, Step, Task

Interval = Annotated[float, Field(ge=1e-6, le=1, allow_inf_nan=False)]  # a share of training that is not empty
Factor = Annotated[float, Field(ge=1, le=10**9, allow_inf_nan=False)]


class Dash(Algorithm):
    """Pseudo-labels below a threshold of loss that falls with training."""

    @dataclass(frozen=True)
    class Config:
        """The hyperparameters of the authors' script, whose 1024 epochs are shares of training here."""

        temperature: PositiveFloat = 0.5  # T, temperature that sharpens the targets
        warm_up: Share = 10 / 1024  # share of training in which all pseudo-labels are kept; ρ is ρ_min if it is 0
        interval: Interval = 9 / 1024  # share of training after which ρ falls
        decay: Factor = 1.27  # γ, factor by which ρ falls
        min_threshold: NonNegativeFloat = 0.05  # ρ_min, nats: 0.05 is a confidence of 0.951
        unlabeled_weight: NonNegativeFloat = 0.9  # λ, weight of the unlabelled loss
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running
        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

    config: Config
    initial_loss: Tensor  # 0-d: ρ̂
    seen: Tensor  # 0-d, int64: unlabelled images seen in the warm-up

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the loss that is measured in the warm-up."""
        super().__init__(backbone, task, config)
        self.register_buffer("initial_loss", torch.zeros(()))
        self.register_buffer("seen", torch.tensor(0))

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """The step of the authors' code, in its order."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)

        loss_x = F.cross_entropy(self.adjust.labeled(head(f_x)), batch.y)

        with torch.no_grad():
            logits_weak = head(f_weak)
            pseudo = logits_weak.argmax(-1)
            is_warming_up = progress < c.warm_up
            falling = self.falling_threshold(progress)
            threshold = falling.clamp(min=c.min_threshold)  # ρ
            keep = is_warming_up | (F.cross_entropy(logits_weak, pseudo, reduction="none") < threshold)
            is_hard = ~is_warming_up & (falling <= c.min_threshold)
            soft = (logits_weak / c.temperature).softmax(-1)
            target = torch.where(is_hard, one_hot(pseudo, self.task.num_classes), soft)  # t
        logits_u = self.adjust.unlabeled(head(f_strong), pseudo)
        each_u = F.cross_entropy(logits_u, target, reduction="none")
        loss_u = masked_mean(each_u, keep)  # over the kept images
        self.measure(each_u.detach(), is_warming_up)

        loss = loss_x + c.unlabeled_weight * loss_u
        logs = {"loss_labeled": loss_x.detach(), "loss_unlabeled": loss_u.detach(), "threshold": threshold}
        return Step(loss, logs, pseudo, keep)

    def falling_threshold(self, progress: Tensor) -> Tensor:
        """ρ̂ · γ^−k after the warm-up, 0-d, in nats."""
        k = 1 + ((progress - self.config.warm_up) / self.config.interval).floor()
        return self.initial_loss * self.config.decay**-k

    # Paper: ρ̂ is the loss of labelled images after the warm-up (from memory); here: that of unlabelled ones, as in the
    # authors' code, because labelled images are soon learnt by heart.
    @torch.no_grad()
    def measure(self, losses: Tensor, is_warming_up: Tensor) -> None:
        """Takes the losses U of a step of the warm-up into ρ̂, their mean over about one pass over the images."""
        self.seen.add_(len(losses) * is_warming_up)
        in_one_pass = self.seen.clamp(len(losses), max(self.task.num_unlabeled, len(losses)))
        rate = is_warming_up * len(losses) / in_one_pass
        self.initial_loss.add_(rate * (losses.mean() - self.initial_loss))
