"""ReMixMatch: Semi-Supervised Learning with Distribution Alignment and Augmentation Anchoring. Berthelot et al.,
ICLR 2020.

Idea: MixMatch whose guess comes from a weak view, is aligned with the labels' class frequencies, and is the target of
strong views; the network also learns to tell by how much strong views were rotated.

    L = CE(mixed labelled) + λ_U · CE(mixed unlabelled) + λ_Û₁ · CE(q, strong) + λ_r · CE(turn, turned strong)

    q = Sharpen(Normalise(p(y | weak(u)) · p̂(y) / p̃(y)), T)

p̂ is the marginal distribution of labels, p̃ the running mean of predictions on unlabelled images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.distributed.collective import all_gather, local_rows
from npmatch.heads import LinearHead, frozen_statistics
from npmatch.objectives.losses import mixup, one_hot, ramp_up, sharpen
from npmatch.objectives.selection import WindowAlignment
from npmatch.types import Batch, NonNegativeFloat, PositiveFloat, Share, Size, Step, Task, Views


class ReMixMatch(Algorithm):
    """Aligned and sharpened guesses, MixUp over weak and strong views, and two losses without MixUp."""

    # Paper: 8 strong views by CTAugment; here: 2 by the streams' policy (RandAugment), because those gave the error
    # rates that comparisons cite.
    views = Views(weak=1, strong=2)
    settings: ClassVar[dict[str, Any]] = {"training.unlabeled_ratio": 1}  # as many unlabelled as labelled images

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters."""

        temperature: PositiveFloat = 0.5  # T, temperature that sharpens the guesses
        mixup: PositiveFloat = 0.75  # α: images are mixed by a ratio drawn from Beta(α, α)
        window: Size = 128  # number of batches whose mean prediction is p̃(y)
        unlabeled_weight: NonNegativeFloat = 1.5  # λ_U, weight of the loss of mixed unlabelled images
        strong_weight: NonNegativeFloat = 0.5  # λ_Û₁, weight of the loss of unmixed strong views
        rotation_weight: NonNegativeFloat = 0.5  # λ_r, weight of the rotation loss
        ramp: Share = 1 / 64  # share of training over which λ_U and λ_Û₁ grow from 0

    config: Config
    label_counts: Tensor  # K, int64: labels seen, plus one each

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the rotation head, which prediction does not need, and the state of the alignment."""
        super().__init__(backbone, task, config)
        self.rotation_head = LinearHead(int(backbone.num_features), 4)  # type: ignore[arg-type]
        self.alignment = WindowAlignment(self.config.window, task.num_classes)
        self.register_buffer("label_counts", torch.ones(task.num_classes, dtype=torch.long))

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """The paper's Algorithm 1, then its four losses."""
        c, head = self.config, self.model.head
        (u_weak,), u_strong = batch.weak, batch.strong[0]
        q = self.guess(u_weak, batch.y)
        labels = one_hot(batch.y, self.task.num_classes)

        # Paper: labelled images strongly augmented; here: their weak views, because a batch holds no others.
        unmixed = [all_gather(view) for view in (batch.x, *batch.strong, u_weak)]
        mixed, targets = mixup(torch.cat(unmixed), torch.cat([labels, *[q] * (len(unmixed) - 1)]), c.mixup)

        turns = torch.randint(4, (len(q),), device=u_strong.device)
        turned = rotate_quarters(u_strong, local_rows(turns))

        # Paper: its code interleaves batches of B and passes the last two apart; here: one joint pass, because all
        # images then share their batch-norm statistics.
        shares = [local_rows(part) for part in torch.split(mixed, [len(view) for view in unmixed])]
        *f_mixed, f_strong, f_turned = self.model.features_together(*shares, u_strong, turned)
        logits_x, logits_u = torch.tensor_split(head(torch.cat(f_mixed)), [len(labels)])
        p_x, p_u = torch.tensor_split(targets, [len(labels)])

        loss_x = F.cross_entropy(logits_x, p_x)
        loss_u = F.cross_entropy(logits_u, p_u)
        loss_strong = F.cross_entropy(head(f_strong), q)
        loss_rotation = F.cross_entropy(self.rotation_head(f_turned), turns)
        ramp = ramp_up(progress, c.ramp)
        loss = (
            loss_x
            + ramp * c.unlabeled_weight * loss_u
            + ramp * c.strong_weight * loss_strong
            + c.rotation_weight * loss_rotation
        )

        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "loss_strong": loss_strong,
            "loss_rotation": loss_rotation,
        }
        pseudo = q.argmax(-1)
        keep = torch.ones_like(pseudo, dtype=torch.bool)  # every guess is used
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)

    @torch.no_grad()
    def guess(self, u_weak: Tensor, y: Tensor) -> Tensor:
        """Label guesses U K of weak views, aligned with the labels seen so far and sharpened."""
        with frozen_statistics(self.model):  # as in the paper's code: only the pass with a gradient updates them
            p = self.model.head(self.model.features(u_weak)).softmax(-1)
        # Paper: p̂(y) of the labelled set; here: of the labels drawn so far, because a step sees the batch alone.
        self.label_counts.scatter_add_(0, y, torch.ones_like(y))
        p = self.alignment(p, self.label_counts / self.label_counts.sum())
        return sharpen(p, self.config.temperature)


def rotate_quarters(images: Tensor, turns: Tensor) -> Tensor:
    """Each of n C S S images turned anticlockwise by its number of quarter turns, n in {0, 1, 2, 3}."""
    every = torch.stack([torch.rot90(images, k, (2, 3)) for k in range(4)])  # 4 n C S S
    return every[turns, torch.arange(len(images), device=images.device)]
