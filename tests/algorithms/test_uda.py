"""UDA's step against the paper in plain Python: sharpening from logits, masking, training-signal annealing."""

import math

import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

from npmatch.algorithms.check import check_algorithm
from npmatch.algorithms.uda import UDA, signal_threshold


@pytest.mark.parametrize("annealing", ["off", "linear", "log", "exp"])
def test_it_passes_all_checks(annealing):
    assert check_algorithm(UDA, UDA.Config(confidence=0.3, annealing=annealing)) is None


def test_weak_views_in_their_own_pass_pass_all_checks():
    assert check_algorithm(UDA, UDA.Config(weak_norm="own")) is None


@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_loss_is_equation_1_with_loops_and_row_selection(temperature):
    total, trusted = 0.0, []
    for weak, strong in zip(WEAK, STRONG, strict=True):
        trusted.append(max(softmax(weak)) > 0.78)  # of the prediction as it is, before it is sharpened
        target = softmax([z / temperature for z in weak])
        if trusted[-1]:
            total += -sum(t * math.log(p) for t, p in zip(target, softmax(strong), strict=True))
    algorithm = make_transparent(UDA, confidence=0.78, temperature=temperature, unlabeled_weight=0.5)
    step = algorithm.loss(make_batch(X, Y, WEAK, STRONG), torch.tensor(0.0))
    assert trusted == [True, True, False, True, False, True] == step.keep.tolist()
    assert step.pseudo.tolist() == [0, 1, 2, 2, 1, 1]
    assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y) + 0.5 * total / len(WEAK), rel=1e-5)


@pytest.mark.parametrize("temperature", [0.4, 2.0])
def test_the_target_is_the_sharpened_softmax_of_the_logits(temperature):
    """By hand: p = (0.8, 0.1, 0.1) sharpened is p^{1/T} normalised; the gradient of the loss is p_strong − target."""
    weak, strong = [math.log(8.0), 0.0, 0.0], [0.0, 0.0, 0.0]
    powered = [0.8 ** (1 / temperature), 0.1 ** (1 / temperature), 0.1 ** (1 / temperature)]
    target = [p / sum(powered) for p in powered]
    batch = make_batch(X, Y, [weak], [strong])
    batch.strong[0].requires_grad_()
    make_transparent(UDA, confidence=0.7, temperature=temperature).loss(batch, torch.tensor(0.0)).loss.backward()
    assert batch.strong[0].grad.flatten().tolist() == pytest.approx([1 / 3 - t for t in target], abs=1e-6)
    assert (target[0] > 0.8) == (temperature < 1)


@pytest.mark.parametrize(
    ("annealing", "alphas"),
    [
        ("linear", [0.0, 0.5, 1.0]),
        ("log", [0.0, 0.917915, 0.993262]),  # 1 − e^{−5t}
        ("exp", [0.006738, 0.082085, 1.0]),  # e^{5(t−1)}
    ],
)
def test_annealing_starts_near_chance_and_ends_near_certainty(annealing, alphas):
    for progress, alpha in zip([0.0, 0.5, 1.0], alphas, strict=True):
        threshold = signal_threshold(annealing, torch.tensor(progress), num_classes=10)
        assert threshold.item() == pytest.approx(0.1 + 0.9 * alpha, abs=1e-5)


def test_labelled_images_that_are_learnt_already_are_left_out():
    """The two images give their own class 0.844 and 0.274; η is 1/3, 2/3 and 1."""
    learnt, unlearnt = mean_cross_entropy(X[:1], Y[:1]), mean_cross_entropy(X[1:], Y[1:])
    algorithm, batch = make_transparent(UDA, annealing="linear"), make_batch(X, Y, WEAK, STRONG)
    for progress, expected in ((0.0, unlearnt), (0.5, unlearnt), (1.0, (learnt + unlearnt) / 2)):
        step = algorithm.loss(batch, torch.tensor(progress))
        assert step.logs["loss_labeled"].item() == pytest.approx(expected, rel=1e-5)
    both_learnt = make_batch(X[:1], Y[:1], WEAK, STRONG)
    assert algorithm.loss(both_learnt, torch.tensor(0.0)).logs["loss_labeled"] == 0
