"""MixMatch: A Holistic Approach to Semi-Supervised Learning. Berthelot et al., NeurIPS 2019.

Idea: guess an unlabelled image's label from the average over its views, sharpen the guess, and learn from labelled
and guessed images alike after mixing them with one another.

    L = CE(mixed labelled) + λ_U · ‖q − p‖² of mixed unlabelled, mean over classes      (Eq. 3–5)

    q = Sharpen(mean over views of p(y | weak(u)), T)      (Eq. 6–7)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch.algorithms.base import Algorithm
from npmatch.distributed.collective import all_gather, local_rows
from npmatch.heads import frozen_statistics
from npmatch.objectives.losses import mixup, one_hot, ramp_up, sharpen
from npmatch.types import Batch, NonNegativeFloat, PositiveFloat, Share, Step, Views


class MixMatch(Algorithm):
    """Sharpened guesses from two weak views, MixUp over everything, squared error on the unlabelled part."""

    views = Views(weak=2, strong=0)
    settings: ClassVar[dict[str, Any]] = {"training.unlabeled_ratio": 1}  # as many unlabelled as labelled images

    @dataclass(frozen=True)
    class Config:
        """The settings under which MixMatch is a baseline of the FixMatch family."""

        temperature: PositiveFloat = 0.5  # T, temperature that sharpens the guesses
        # Paper: α 0.75 and λ_U 75 (CIFAR-10), 150 (CIFAR-100) or 50 (STL-10), ramped over 16,000 steps; here: 0.5,
        # 100 and 40 % of training, because those gave the error rates that comparisons cite.
        mixup: PositiveFloat = 0.5  # α: images are mixed by a ratio drawn from Beta(α, α)
        unlabeled_weight: NonNegativeFloat = 100.0  # λ_U, weight of the unlabelled loss
        ramp: Share = 0.4  # share of training over which λ_U grows from 0

    config: Config

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Algorithm 1, then Equations 3 to 5."""
        c = self.config
        q = self.guess(batch.weak)
        labels = one_hot(batch.y, self.task.num_classes)

        # Each pair has its own λ, as in the paper; one shuffle of all images gives the partners.
        images = [all_gather(view) for view in (batch.x, *batch.weak)]
        mixed, targets = mixup(torch.cat(images), torch.cat([labels, *[q] * len(batch.weak)]), c.mixup)  # Eq. 8–11

        # Paper: its code interleaves batches of B, so that labelled and unlabelled images share batch-norm statistics;
        # here: one joint pass, because it serves the same end with all images at once.
        parts = torch.split(mixed, [len(view) for view in images])
        f = self.model.features_together(*(local_rows(part) for part in parts))
        logits_x, logits_u = torch.tensor_split(self.model.head(torch.cat(f)), [len(labels)])
        p_x, p_u = torch.tensor_split(targets, [len(labels)])

        loss_x = F.cross_entropy(logits_x, p_x)  # Eq. 3
        loss_u = (logits_u.softmax(-1) - p_u).square().mean()  # Eq. 4
        weight = c.unlabeled_weight * ramp_up(progress, c.ramp)
        loss = loss_x + weight * loss_u  # Eq. 5

        logs = {"loss_labeled": loss_x, "loss_unlabeled": loss_u, "unlabeled_weight": weight}
        pseudo = q.argmax(-1)
        keep = torch.ones_like(pseudo, dtype=torch.bool)  # every guess is used
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)

    @torch.no_grad()
    def guess(self, weak: tuple[Tensor, ...]) -> Tensor:
        """Label guesses U K: the predictions of all weak views, averaged and sharpened."""
        with frozen_statistics(self.model):  # as in the paper's code: only the mixed images update them
            logits = self.model.head(torch.cat(self.model.features_together(*weak)))
        p = logits.softmax(-1).view(len(weak), -1, self.task.num_classes).mean(0)  # Eq. 6
        return sharpen(p, self.config.temperature)  # Eq. 7
