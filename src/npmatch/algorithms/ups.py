"""Uncertainty-aware pseudo-label selection: In Defense of Pseudo-Labeling (UPS). Rizve et al., ICLR 2021.

Idea: the spread of T passes under dropout is the uncertainty of a prediction. A label is trusted where it is likely and
certain; classes that are certain to be unlikely are learnt as negative labels.

    L = CE(y, p(y | weak(x))) + λ_u · 1/U Σ_b g_b · CE(argmax p_b, p(y | strong(u_b))) + λ_n · L_neg
    L_neg = mean over pairs (b, c) with g_bc of −log(1 − p(c | strong(u_b)))
    g_b  = 1(max p_b ≥ τ_c and std of the chosen class ≤ κ_p)                 positive labels
    g_bc = 1(p_bc ≤ τ_n and std_bc ≤ κ_n), where b has no positive label      negative labels
    p_b, std_b: mean and standard deviation over T passes of the probabilities of weak(u_b)

This is UPS as the comparison of the NP-Match paper has it, with strong augmentation and FlexMatch's curriculum
thresholds τ_c, computed in every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import MCDropoutModel, frozen_statistics
from npmatch.objectives.losses import masked_mean, one_hot
from npmatch.objectives.selection import Curriculum
from npmatch.types import Adjustment, Batch, NonNegativeFloat, Samples, Share, ShareBelowOne, Step, Task


class Selection(NamedTuple):
    """Pseudo-labels of unlabelled images, positive and negative."""

    pseudo: Tensor  # U, int64
    positive: Tensor  # U, bool: the pseudo-label is trusted
    negative: Tensor  # U K, bool: the image is trusted not to be of this class


class UPS(Algorithm):
    """Positive and negative pseudo-labels, selected by the uncertainty of MC dropout."""

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters, with the confidence of FlexMatch's curriculum."""

        samples: Samples = 10  # T, number of passes under dropout
        dropout: ShareBelowOne = 0.3  # share of elements dropped
        confidence: Share = 0.95  # τ_p: upper limit of the thresholds of the classes
        max_std: NonNegativeFloat = 0.05  # κ_p: pseudo-labels of higher standard deviation are not trusted
        negative_confidence: Share = 0.05  # τ_n: highest probability of a negative label
        negative_max_std: NonNegativeFloat = 0.005  # κ_n: highest standard deviation of a negative label
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_u, weight of the loss of positive labels
        negative_weight: NonNegativeFloat = 1.0  # λ_n, weight of the loss of negative labels
        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

    config: Config
    model: MCDropoutModel

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the curriculum to the model: one integer per unlabelled image."""
        super().__init__(backbone, task, config)
        self.curriculum = Curriculum(task.num_unlabeled, task.num_classes, self.config.confidence)

    @classmethod
    def make_model(cls, backbone: nn.Module, task: Task, config: Config) -> MCDropoutModel:
        """The backbone with dropout in its slots, and a linear head with dropout before it."""
        return MCDropoutModel(backbone, task.num_classes, config.dropout, config.samples)

    # Paper: rounds of training, with pseudo-labels made between them; here: pseudo-labels in every step, because the
    # curriculum and the strong views that the comparison adds to UPS work on batches.
    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Selection on weak views, learning on strong ones."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        pseudo, positive, negative = self.select(self.sample(u_weak), batch.index)

        # The weak views are in this pass for batch norm only: its statistics are of all views, as in other algorithms.
        f_x, _, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, "joint")
        logits_strong = head(f_strong)
        loss_x = F.cross_entropy(self.adjust.labeled(head(f_x)), batch.y)
        # Paper: the mean over trusted images; here: over all U, because FlexMatch's curriculum was made for that.
        logits_u = self.adjust.unlabeled(logits_strong, pseudo)
        loss_u = (positive * F.cross_entropy(logits_u, pseudo, reduction="none")).mean()
        # Paper: the mean over an image's negative labels, then over images; here: over all pairs, because each label
        # then has the same weight.
        not_class = -(1 - logits_strong.softmax(-1)).clamp(min=1e-7).log()
        loss_n = masked_mean(not_class.flatten(), negative.flatten())

        loss = loss_x + c.unlabeled_weight * loss_u + c.negative_weight * loss_n
        logs = {
            "loss_labeled": loss_x.detach(),
            "loss_unlabeled": loss_u.detach(),
            "loss_negative": loss_n.detach(),
            "negative_share": negative.float().mean(),
        }
        return Step(loss, logs, pseudo, positive)

    @torch.no_grad()
    def sample(self, u_weak: Tensor) -> Tensor:
        """Probabilities of T passes with fresh dropout masks, T U K."""
        # Paper: batch norm by running statistics; here: by the weak views of each pass, because slow running
        # statistics lag far behind the weights at first. They do not change: T passes would count an image T times.
        with frozen_statistics(self.model):
            return torch.stack([self.model.logits(u_weak) for _ in range(self.config.samples)]).softmax(-1)

    @torch.no_grad()
    def select(self, samples: Tensor, index: Tensor) -> Selection:
        """Positive and negative labels from probabilities T U K of the images `index` U; updates the curriculum."""
        c = self.config
        p, std = samples.mean(0), samples.std(0, correction=min(1, len(samples) - 1))  # 0 for one pass
        confidence, pseudo = p.max(-1)
        steady = std.gather(1, pseudo[:, None]).squeeze(1) <= c.max_std
        positive = (confidence >= self.curriculum.thresholds()[pseudo]) & steady
        self.curriculum.update(index, pseudo, (confidence >= c.confidence) & steady)

        chosen = one_hot(pseudo, self.task.num_classes).bool()  # never a negative label
        negative = (p <= c.negative_confidence) & (std <= c.negative_max_std) & ~chosen & ~positive[:, None]
        return Selection(pseudo, positive, negative)
