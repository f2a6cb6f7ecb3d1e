"""The averaged teacher against a closed form of its weights, and against a copy of the student that has them."""

import copy

import pytest
import torch

from npmatch.algorithms.check import TinyBackbone
from npmatch.heads import AveragedTeacher, LinearHead, Model


def make_student() -> Model:
    torch.manual_seed(0)
    return Model(TinyBackbone(), LinearHead(8, 4)).double()


def move(student: Model, k: int) -> None:
    """Weights that differ in every step k."""
    with torch.no_grad():
        for number, p in enumerate(student.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * k + number)))


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.75, 0.9, 1.0])
def test_after_n_updates_the_weights_are_those_of_the_closed_form(decay):
    """Up to k = 1/(1 − m) the mean of θ₁ … θ_k; then n more steps: mⁿ of that mean and (1 − m)·mⁿ⁻ʲ of each θ_j."""
    student, steps = make_student(), 12
    teacher, seen = AveragedTeacher(student, decay).double(), []
    for k in range(steps):
        move(student, k)
        teacher.update(student)
        seen.append([p.detach().clone() for p in student.parameters()])
    first = steps if decay == 1 else min(steps, int(1 / (1 - decay) + 1e-9))
    shares = [decay ** (steps - first) / first] * first
    shares += [(1 - decay) * decay ** (steps - 1 - j) for j in range(first, steps)]
    assert sum(shares) == pytest.approx(1)
    for number, (name, _) in enumerate(student.named_parameters()):
        expected = sum(share * weights[number] for share, weights in zip(shares, seen, strict=True))
        torch.testing.assert_close(teacher.get_buffer(name.replace(".", "/")), expected)
    assert teacher.updates == steps


def test_the_first_update_makes_it_equal_to_its_student():
    student = make_student()
    teacher = AveragedTeacher(student, 0.999)
    move(student, 1)
    teacher.update(student)
    for name, p in student.named_parameters():
        torch.testing.assert_close(teacher.get_buffer(name.replace(".", "/")), p.detach(), rtol=0, atol=1e-12)


def test_it_predicts_as_a_copy_of_the_student_with_its_weights():
    student, x = make_student().train(), torch.randn(6, 1, 8, 8, dtype=torch.float64)
    teacher = AveragedTeacher(student, 0.5)
    for k in range(4):
        move(student, k)
        teacher.update(student)
    other = copy.deepcopy(student)
    with torch.no_grad():
        for name, p in other.named_parameters():
            p.copy_(teacher.get_buffer(name.replace(".", "/")))
    before = [p.detach().clone() for p in student.parameters()]
    prediction = teacher(student, x)
    torch.testing.assert_close(prediction.probs, other(x).probs.detach())
    assert not torch.allclose(prediction.probs, student(x).probs, atol=1e-3)
    assert not prediction.probs.requires_grad
    assert all(torch.equal(p, q) for p, q in zip(student.parameters(), before, strict=True))


def test_it_has_no_parameters_and_holds_no_weights_that_are_not_trained():
    student = make_student()
    student.backbone.requires_grad_(False)
    teacher = AveragedTeacher(student, 0.9)
    assert list(teacher.parameters()) == []
    assert {name for name, _ in teacher.named_buffers()} == {"updates", "head/weight", "head/bias"}
    teacher.update(student)
    assert teacher(student, torch.randn(2, 1, 8, 8, dtype=torch.float64)).probs.shape == (2, 4)
