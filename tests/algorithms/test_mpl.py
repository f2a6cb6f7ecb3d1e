"""Meta Pseudo Labels: which network each update changes, the value of the feedback, and its direction."""

import copy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from npmatch.algorithms import check_algorithm
from npmatch.algorithms.check import make_algorithm, make_batch, take_steps
from npmatch.algorithms.mpl import MetaPseudoLabels, draw, fresh
from npmatch.training.config import TrainingConfig
from npmatch.training.update import Update


def algorithm(**options) -> MetaPseudoLabels:
    return make_algorithm(MetaPseudoLabels, MetaPseudoLabels.Config(**options))


def take_step(a, update, progress=0.5, batch=None):
    torch.manual_seed(7)
    return a.train_step(batch or make_batch(a), torch.tensor(progress), update)


def weights(module):
    return [p.detach().clone() for p in module.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class Recording:
    """An update that records the losses, and the weights of both networks before and after each of them."""

    def __init__(self, a, update):
        self.a, self.update, self.losses = a, update, []
        self.student, self.teacher = [weights(a.model)], [weights(a.teacher)]

    def __call__(self, loss):
        self.losses.append(loss.detach().clone())
        self.update(loss)
        self.student.append(weights(self.a.model))
        self.teacher.append(weights(self.a.teacher))


@pytest.mark.parametrize("options", [{}, {"fresh_teacher": False}, {"finetune": 0.6, "uda_ramp": 0.0}])
def test_it_passes_all_checks(options):
    assert check_algorithm(MetaPseudoLabels, MetaPseudoLabels.Config(**options)) is None


def test_the_first_update_moves_the_student_alone_and_the_second_the_teacher_alone():
    a = algorithm()
    recording = Recording(a, Update(a, TrainingConfig(momentum=0.9)))
    for _ in range(2):  # in the second step momentum and weight decay could also change the other network
        take_step(a, recording)
    unchanged = [[same(*pair) for pair in pairwise(each)] for each in (recording.student, recording.teacher)]
    assert unchanged == [[False, True, False, True], [True, False, True, False]]


def test_the_losses_and_the_feedback_are_the_papers_with_a_copied_student():
    a, options = algorithm(), TrainingConfig()
    a.baseline.fill_(0.03)
    batch, old_student, old_teacher = make_batch(a), copy.deepcopy(a.model), copy.deepcopy(a.teacher)
    everything = torch.cat([batch.x, batch.weak[0], batch.strong[0]])
    t_x, t_weak, t_strong = old_teacher.head(old_teacher.backbone(everything)).split([6, 18, 18])
    sharpened = [weak.softmax(-1) ** (1 / 0.7) / (weak.softmax(-1) ** (1 / 0.7)).sum() for weak in t_weak]
    surest = torch.stack(sharpened).amax(-1).detach().sort().values
    threshold = float(surest[8:10].mean())  # half of them are above it, as an untrained teacher is not confident
    a.config = replace(a.config, confidence=threshold)
    recording = Recording(a, Update(a, options))
    step = take_step(a, recording, progress=1 / 120, batch=batch)  # λ is half of 8
    torch.manual_seed(7)
    pseudo = draw(t_strong.softmax(-1))
    assert torch.equal(step.pseudo, pseudo)
    assert step.keep.all()

    images = torch.cat([batch.x, batch.strong[0]])
    s_x, s_strong = old_student.head(old_student.backbone(images)).split([6, 18])
    student_loss = F.cross_entropy(s_strong, pseudo)
    torch.testing.assert_close(recording.losses[0], student_loss.detach())
    optimiser = torch.optim.SGD(
        [
            {"params": [p for p in old_student.parameters() if p.dim() > 1], "weight_decay": options.weight_decay},
            {"params": [p for p in old_student.parameters() if p.dim() <= 1]},
        ],
        lr=options.learning_rate,
        momentum=options.momentum,
        nesterov=True,
    )
    student_loss.backward()
    optimiser.step()
    new_x = old_student.head(old_student.backbone(images))[:6]
    change = (F.cross_entropy(s_x, batch.y) - F.cross_entropy(new_x, batch.y)).detach()
    torch.testing.assert_close(step.logs["feedback"], change - 0.03, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(a.baseline, 0.99 * torch.tensor(0.03) + 0.01 * change)

    smooth = (0.85 * F.one_hot(batch.y, 4) + 0.15 / 4).float()
    loss_labeled = -(smooth * t_x.log_softmax(-1)).sum(-1).mean()
    terms = [
        -(q * strong.log_softmax(-1)).sum() / 18
        for q, strong in zip(sharpened, t_strong, strict=True)
        if q.max() >= threshold
    ]
    assert len(terms) == 9
    loss_uda = sum(terms)
    expected = loss_labeled + 4 * loss_uda + (change - 0.03) * F.cross_entropy(t_strong, pseudo)
    torch.testing.assert_close(recording.losses[1], expected.detach(), rtol=1e-4, atol=1e-5)


def test_labels_that_helped_become_likelier_and_labels_that_harmed_unlikelier():
    """The same teacher, batch and labels; the student's step lowers, keeps or raises its labelled loss."""
    likelihood = {}
    for student_moves in ("down", "nowhere", "up"):
        a = algorithm()
        batch = make_batch(a)
        before = copy.deepcopy(a.teacher)
        calls = []

        def update(loss, a=a, calls=calls, batch=batch, student_moves=student_moves):
            calls.append(loss)
            if len(calls) == 1:  # the student's turn
                loss = F.cross_entropy(a.model.head(a.model.backbone(batch.x)), batch.y)
                rate = {"down": 0.5, "nowhere": 0.0, "up": -0.5}[student_moves]
                moved = a.model
            else:
                rate, moved = 0.05, a.teacher
            for p, g in zip(moved.parameters(), torch.autograd.grad(loss, list(moved.parameters())), strict=True):
                p.data -= rate * g

        step = take_step(a, update, batch=batch)
        assert (step.logs["feedback"] > 1e-4) == (student_moves == "down")
        assert (step.logs["feedback"] < -1e-4) == (student_moves == "up")
        everything = torch.cat([batch.x, batch.weak[0], batch.strong[0]])
        likelihood[student_moves] = [
            -F.cross_entropy(t.head(t.backbone(everything))[24:], step.pseudo) for t in (before, a.teacher)
        ]
    old, new = zip(*likelihood.values(), strict=True)
    assert old[0] == old[1] == old[2]
    assert new[0] > new[1] > new[2]


@pytest.mark.parametrize("label", ["right", "wrong"])
def test_right_labels_give_positive_feedback_and_wrong_ones_negative(label):
    a = algorithm()
    batch = make_batch(a)
    y = torch.zeros_like(batch.y)
    batch = batch._replace(y=y, strong=(batch.x.repeat(3, 1, 1, 1),))  # the unlabelled images are the labelled ones
    with torch.no_grad():
        a.teacher.head.bias[0 if label == "right" else 1] += 50
    step = take_step(a, Update(a, TrainingConfig()), batch=batch)
    assert (step.logs["feedback"] > 0) == (label == "right")


def test_fine_tuning_uses_the_labelled_loss_alone_and_gives_no_feedback():
    results = []
    for teacher_bias in (0.0, 50.0):  # two teachers that give different labels
        a = algorithm()
        a.baseline.fill_(0.25)
        with torch.no_grad():
            a.teacher.head.bias[1] += teacher_bias
        recording = Recording(a, Update(a, TrainingConfig()))
        step = take_step(a, recording, progress=0.985)
        results.append((recording.student[-1], step.pseudo))
        torch.testing.assert_close(recording.losses[0], step.logs["loss_student_labeled"])
        assert step.logs["feedback"] == 0
        assert a.baseline == 0.25
    assert not torch.equal(results[0][1], results[1][1])
    assert same(results[0][0], results[1][0])
    before = take_step(algorithm(), lambda loss: None, progress=0.97)
    assert before.logs["loss_student"] != before.logs["loss_student_labeled"]


def test_the_moving_mean_survives_a_save():
    a = algorithm()
    take_steps(a, range(3))
    assert a.baseline != 0
    other = algorithm()
    other.load_state_dict(a.state_dict())
    assert other.baseline == a.baseline


def test_a_fresh_teacher_has_the_students_shapes_and_scale_but_other_weights():
    a = algorithm()
    other = fresh(a.model)
    for (name, p), q in zip(a.model.named_parameters(), other.parameters(), strict=True):
        assert p.sort().values.shape == q.sort().values.shape
        assert torch.equal(p.flatten().sort().values, q.flatten().sort().values)
        if p.dim() > 1:
            assert not torch.equal(p, q), name
    assert not same(a.model.parameters(), a.teacher.parameters())
    copied = algorithm(fresh_teacher=False)
    assert same(copied.model.parameters(), copied.teacher.parameters())


def test_classes_are_drawn_with_their_probabilities():
    probs = torch.tensor([0.1, 0.2, 0.7])
    torch.manual_seed(0)
    drawn = draw(probs.expand(20000, 3))
    torch.testing.assert_close(drawn.bincount() / 20000, probs, rtol=0, atol=0.015)


def test_the_teacher_computes_in_the_students_precision():
    a = algorithm()
    a.model.autocast = torch.bfloat16
    take_step(a, lambda loss: None)
    assert a.teacher.autocast is torch.bfloat16
