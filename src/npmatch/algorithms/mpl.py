"""Meta Pseudo Labels. Pham et al., CVPR 2021.

Idea: a teacher labels the unlabelled images, a student learns from these labels alone, and how the student's loss on
labelled images changed tells the teacher whether its labels were good.

    ŷ ~ p_T(y | strong(u))                                          the teacher's hard labels
    θ_S ← θ_S − η ∇ CE(ŷ, p_S(strong(u)))                           the student's step
    h = CE(y, p_S^old(x)) − CE(y, p_S^new(x)) − b                   feedback, less its moving mean b
    L_T = CE_smooth(y, p_T(x)) + λ(t) · L_UDA + h · CE(ŷ, p_T(strong(u)))
    L_UDA = 1/U Σ_b 1(max q_b ≥ τ) · CE(q_b, p_T(strong(u_b))),   q_b = softmax(z_b / T), z_b the logits of weak(u_b)

Where the labels lowered the student's loss (h > 0), the teacher's step makes them likelier. In the end the student is
fine-tuned on the labelled images.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm, Update
from npmatch.heads import Model
from npmatch.objectives.losses import ramp_up
from npmatch.types import Batch, NonNegativeFloat, PositiveFloat, Share, Step, Task


class MetaPseudoLabels(Algorithm):
    """`model` is the student, which predicts and is saved; `teacher` is another network of the same shape."""

    @dataclass(frozen=True)
    class Config:
        """The hyperparameters of the paper and of its public implementations."""

        temperature: PositiveFloat = 0.7  # T, temperature of the teacher's UDA loss
        confidence: Share = 0.6  # τ: least confidence of a sharpened prediction that is used
        uda_weight: NonNegativeFloat = 8.0  # λ, weight of the UDA loss
        uda_ramp: Share = 1 / 60  # share of training over which λ grows from 0
        label_smoothing: Share = 0.15  # label smoothing of the teacher's labelled loss
        baseline_decay: Share = 0.99  # decay of the moving mean b
        finetune: Share = 0.02  # share of training, at its end, in which the student learns from labelled images only
        fresh_teacher: bool = True  # false, for pretrained networks: the teacher starts with the student's weights

    config: Config
    baseline: Tensor  # 0-d: b

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the teacher and the feedback's moving mean."""
        super().__init__(backbone, task, config)
        self.teacher = fresh(self.model) if self.config.fresh_teacher else deepcopy(self.model)
        self.register_buffer("baseline", torch.zeros(()))

    def train_step(self, batch: Batch, progress: Tensor, update: Update) -> Step:
        """The student's step, the feedback it gives, the teacher's step."""
        c = self.config
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        self.teacher.autocast = self.model.autocast
        finetuning = progress >= 1 - c.finetune

        # One pass of the teacher over all views; its graph is kept until the feedback is known.
        f_views = self.teacher.features_of_views(batch.x, u_weak, u_strong, "joint")
        t_x, t_weak, t_strong = (self.teacher.head(f) for f in f_views)
        pseudo = draw(t_strong.detach().softmax(-1))

        # The student's step. Its loss does not depend on the teacher's weights, so these do not change.
        s_x, s_strong = self.student(batch.x, u_strong)
        loss_before = F.cross_entropy(s_x, batch.y)
        # Paper: fine-tunes after training, with an optimiser and a learning rate of its own; here: in the last share of
        # the steps, because a run has one length and one schedule.
        loss_student = torch.where(finetuning, loss_before, F.cross_entropy(s_strong, pseudo))
        update(loss_student)

        # Feedback of the updated student, on the same images in the same batch-norm batch as before.
        with torch.no_grad():
            loss_after = F.cross_entropy(self.student(batch.x, u_strong)[0], batch.y)
            change = torch.where(finetuning, self.baseline, loss_before - loss_after)  # none while fine-tuning
            feedback = change - self.baseline  # h
            self.baseline.lerp_(change, 1 - c.baseline_decay)

            target = (t_weak / c.temperature).softmax(-1)  # q
            trusted = target.amax(-1) >= c.confidence

        loss_labeled = F.cross_entropy(t_x, batch.y, label_smoothing=c.label_smoothing)
        loss_uda = (trusted * F.cross_entropy(t_strong, target, reduction="none")).mean()
        # Paper: its released code has the other sign, new − old; here: old − new, because the paper derives this one:
        # going down this loss makes labels that helped likelier.
        loss_feedback = feedback * F.cross_entropy(t_strong, pseudo)
        loss_teacher = loss_labeled + c.uda_weight * ramp_up(progress, c.uda_ramp) * loss_uda + loss_feedback
        update(loss_teacher)

        logs = {
            "loss_student": loss_student,
            "loss_student_labeled": loss_before,
            "loss_teacher": loss_teacher,
            "loss_teacher_labeled": loss_labeled,
            "loss_uda": loss_uda,
            "trusted_uda": trusted.float().mean(),
            "feedback": feedback,
        }
        loss = (loss_student + loss_teacher).detach()
        everything = torch.ones_like(pseudo, dtype=torch.bool)  # the student learns from every label
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, everything)

    def student(self, x: Tensor, u_strong: Tensor) -> tuple[Tensor, Tensor]:
        """The student's logits of labelled images B K and of strong views U K, in one batch-norm batch."""
        f_x, f_strong = self.model.features_together(x, u_strong)
        logits: Tensor = self.model.head(torch.cat([f_x, f_strong]))
        return logits[: len(f_x)], logits[len(f_x) :]


def draw(probs: Tensor) -> Tensor:
    """One class for each row of n K, drawn by its probabilities; unlike torch.multinomial the host does not wait."""
    return (probs / torch.empty_like(probs).exponential_()).argmax(-1)


@torch.no_grad()
def fresh(model: Model) -> Model:
    """A copy of `model` with the entries of each tensor shuffled.

    Initial weights are drawn independently, so a shuffle is a new draw, however the backbone initialises them.
    """
    other = deepcopy(model)
    for p in other.parameters():
        p.copy_(p.flatten()[torch.randperm(p.numel())].view_as(p))
    return other
