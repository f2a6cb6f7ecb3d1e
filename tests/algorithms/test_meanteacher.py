"""Mean Teacher's step against a student and a teacher that are computed apart."""

import copy

import pytest
import torch
import torch.nn.functional as F

from npmatch.algorithms import check
from npmatch.algorithms.meanteacher import MeanTeacher
from npmatch.training import TrainingConfig, Update


def algorithm(**options) -> MeanTeacher:
    return check.make_algorithm(MeanTeacher, MeanTeacher.Config(**options))


def take_steps(a: MeanTeacher, n: int) -> list[list[torch.Tensor]]:
    """Takes n steps; returns the student's weights before each of them and after the last."""
    update, weights = Update(a, TrainingConfig()), []
    for k in range(n):
        weights.append([p.detach().clone() for p in a.parameters()])
        a.train_step(check.make_batch(a, k), torch.tensor(1.0), update)
    return [*weights, [p.detach().clone() for p in a.parameters()]]


@pytest.mark.parametrize("options", [{}, {"teacher_decay": 0.5, "ramp": 0.0}, {"teacher_decay": 0.0}])
def test_it_passes_all_checks(options):
    assert check.check_algorithm(MeanTeacher, MeanTeacher.Config(**options)) is None


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.0), (0.1, 12.5), (0.4, 50.0), (1.0, 50.0)])
def test_the_loss_is_that_of_a_student_and_a_copied_teacher(progress, weight):
    a = algorithm(teacher_decay=0.5)
    before = take_steps(a, 3)
    # Before step 4 the teacher has the weights θ₁ and θ₂ by halves, and then θ₃ and θ₄ by halves of what is left.
    shares = [0.125, 0.125, 0.25, 0.5]
    teacher, student = copy.deepcopy(a.model), copy.deepcopy(a.model)
    with torch.no_grad():
        for p, *weights in zip(teacher.parameters(), *before, strict=True):
            p.copy_(sum(share * w for share, w in zip(shares, weights, strict=True)))
    batch = check.make_batch(a, 7)
    target = teacher.head(teacher.backbone(batch.weak[0])).softmax(-1).double()
    found = student.head(student.backbone(batch.weak[1])).softmax(-1).double()
    loss_x = F.cross_entropy(student.head(student.backbone(batch.x)), batch.y)
    loss_u = ((found - target) ** 2).sum() / target.numel()

    step = a.loss(batch, torch.tensor(progress))
    assert step.logs["unlabeled_weight"].item() == pytest.approx(weight)
    assert step.logs["loss_unlabeled"].item() == pytest.approx(loss_u.item(), rel=1e-4)
    assert step.loss.item() == pytest.approx((loss_x + weight * loss_u).item(), rel=1e-4)
    assert step.pseudo.tolist() == target.argmax(-1).tolist()
    assert step.keep.all()


def test_the_unlabelled_loss_moves_the_student_and_not_the_teacher():
    a = algorithm()
    take_steps(a, 2)
    batch = check.make_batch(a)
    for view in batch.weak:
        view.requires_grad_()
    a.loss(batch, torch.tensor(1.0)).loss.backward()
    assert batch.weak[0].grad is None
    assert batch.weak[1].grad.flatten(1).any(1).all()
    assert all(p.grad.any() for p in a.parameters())
    assert not any(buffer.requires_grad for buffer in a.teacher.buffers())
    assert {name for name, _ in a.named_parameters()} == {f"model.{name}" for name, _ in a.model.named_parameters()}


def test_each_view_is_normalised_by_itself_and_leaves_the_running_statistics():
    a, sizes = algorithm(), []
    a.model.backbone.norm.register_forward_hook(lambda module, x, out: sizes.append((len(out), out.requires_grad)))
    a.loss(check.make_batch(a), torch.tensor(1.0))
    unlabeled = check.BATCH * check.RATIO
    assert sizes == [(check.BATCH, True), (unlabeled, False), (unlabeled, True)]
    assert a.model.backbone.norm.num_batches_tracked == 1
