"""Mean teachers are better role models: Weight-averaged consistency targets improve semi-supervised deep learning
results (Mean Teacher). Tarvainen & Valpola, NeurIPS 2017.

Idea: a teacher whose weights are the average of the student's over past steps gives better targets than the student.

    L = L_s + λ(t) · L_u
    L_s = 1/B  Σ_b H(y_b, p_θ(y | weak(x_b)))
    L_u = 1/UK Σ_b ‖p_θ(y | weak₂(u_b)) − p_θ'(y | weak₁(u_b))‖²
    θ' ← m·θ' + (1 − m)·θ after each step

λ(t) grows linearly from 0 to λ_u over the first part of training. The student is saved, with the weights that
`training.ema` averages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import AveragedTeacher, frozen_statistics
from npmatch.objectives.losses import ramp_up
from npmatch.types import Batch, NonNegativeFloat, Share, Step, Task, Views


class MeanTeacher(Algorithm):
    """The squared error between the predictions of a student and of its weight-averaged teacher."""

    views = Views(weak=2, strong=0)
    settings: ClassVar[dict[str, Any]] = {"training.unlabeled_ratio": 1}  # as many unlabelled as labelled images

    # Paper: λ grows as exp(−5(1 − t)²), and m is 0.99 until it is grown (from memory); here: the settings of TorchSSL,
    # because those gave the error rates that comparisons cite.
    @dataclass(frozen=True)
    class Config:
        """The settings under which Mean Teacher is a baseline of the FixMatch family."""

        teacher_decay: Share = 0.999  # m, decay of the teacher's weights; the first averages are shorter
        unlabeled_weight: NonNegativeFloat = 50.0  # λ_u, weight of the unlabelled loss
        ramp: Share = 0.4  # share of training over which λ_u grows from 0

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the teacher to the model, which is the student."""
        super().__init__(backbone, task, config)
        self.teacher = AveragedTeacher(self.model, self.config.teacher_decay)

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """One pass for the labelled images, and one for each view of the unlabelled."""
        c, head = self.config, self.model.head
        u_teacher, u_student = batch.weak
        self.teacher.update(self.model)  # with the weights after the last step
        loss_x = F.cross_entropy(head(self.model.features(batch.x)), batch.y)  # L_s

        with frozen_statistics(self.model):  # only labelled images update the running statistics
            target = self.teacher(self.model, u_teacher).probs
            p_student = head(self.model.features(u_student)).softmax(-1)
        loss_u = (p_student - target).square().mean()  # L_u: over images and classes

        weight = c.unlabeled_weight * ramp_up(progress, c.ramp)  # λ(t)
        loss = loss_x + weight * loss_u
        logs = {"loss_labeled": loss_x, "loss_unlabeled": loss_u, "unlabeled_weight": weight}
        pseudo = target.argmax(-1)
        keep = torch.ones_like(pseudo, dtype=torch.bool)  # every prediction of the teacher is a target
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)
