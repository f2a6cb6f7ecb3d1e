"""Dash's step against its definition in plain Python: warm-up, falling threshold, soft and hard targets."""

import math

import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

from npmatch.algorithms.check import check_algorithm
from npmatch.algorithms.dash import Dash

N = len(WEAK)
BATCH = make_batch(X, Y, WEAK, STRONG)


def soft_losses(weak, temperature=0.5):
    found = []
    for row, strong in zip(weak, STRONG, strict=True):
        target = softmax([z / temperature for z in row])
        found.append(-sum(t * math.log(p) for t, p in zip(target, softmax(strong), strict=True)))
    return found


def warmed_up(rho, **options):
    """An algorithm whose ρ̂ is `rho`."""
    algorithm = make_transparent(Dash, **options)
    algorithm.initial_loss.fill_(rho)
    return algorithm


@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
@pytest.mark.parametrize("warm_up", [0.0, 0.25, 1.0])
def test_it_passes_all_checks(weak_norm, warm_up):
    assert check_algorithm(Dash, Dash.Config(weak_norm=weak_norm, warm_up=warm_up)) is None


def test_all_images_are_kept_in_the_warm_up_with_soft_targets():
    algorithm = make_transparent(Dash, warm_up=0.2, unlabeled_weight=0.5)
    step = algorithm.loss(BATCH, torch.tensor(0.1))
    mean = sum(soft_losses(WEAK)) / N
    assert step.keep.all()
    assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y) + 0.5 * mean, rel=1e-5)
    assert algorithm.initial_loss.item() == pytest.approx(mean, rel=1e-5)


def test_the_loss_of_the_warm_up_is_a_mean_over_about_one_pass():
    """The batch is the whole set of six images, so one pass is one step; of a larger set it is the mean so far."""
    whole, larger = make_transparent(Dash, warm_up=0.2), make_transparent(Dash, warm_up=0.2)
    larger.task = type(larger.task)(larger.task.class_names, num_labeled=2, num_unlabeled=4 * N)
    means, moving = [], 0.0
    for turn in range(6):
        weak = [[(1 + turn) * z for z in row] for row in WEAK]
        means.append(sum(soft_losses(weak)) / N)
        moving = sum(means) / len(means) if turn < 4 else 0.75 * moving + 0.25 * means[-1]
        for algorithm in (whole, larger):
            algorithm.loss(make_batch(X, Y, weak, STRONG), torch.tensor(0.1))
        assert whole.initial_loss.item() == pytest.approx(means[-1], rel=1e-5)
        assert larger.initial_loss.item() == pytest.approx(moving, rel=1e-5)
    larger.loss(BATCH, torch.tensor(0.2))
    assert larger.initial_loss.item() == pytest.approx(moving, rel=1e-5), "the warm-up has ended"
    assert larger.seen == 6 * N


def test_the_threshold_falls_like_that_of_the_authors_code():
    """With 1024 epochs: k = ⌊(epoch − 1) / 9⌋ from epoch 10 on, and never below 0.05."""
    algorithm = warmed_up(2.0)
    for epoch in range(10, 1024, 7):
        step = algorithm.loss(BATCH, torch.tensor((epoch + 0.5) / 1024))
        expected = max(2.0 * 1.27 ** -((epoch - 1) // 9), 0.05)
        assert step.logs["threshold"].item() == pytest.approx(expected, rel=1e-4)


def test_kept_images_are_those_of_low_loss_with_soft_targets_and_the_mean_over_them():
    rho = 0.5 / 1.27
    step = warmed_up(0.5, unlabeled_weight=0.5).loss(BATCH, torch.tensor(10.5 / 1024))
    kept = [-math.log(max(softmax(row))) < rho for row in WEAK]
    losses = [loss for loss, keep in zip(soft_losses(WEAK), kept, strict=True) if keep]
    assert step.keep.tolist() == kept == [max(softmax(row)) > math.exp(-rho) for row in WEAK]
    assert 0 < len(losses) < N
    assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y) + 0.5 * sum(losses) / len(losses), rel=1e-5)


def test_at_its_floor_it_keeps_a_confidence_of_0951_with_hard_targets():
    step = warmed_up(2.0, unlabeled_weight=1.0).loss(BATCH, torch.tensor(0.9))
    kept = [max(softmax(row)) > 0.951229 for row in WEAK]
    rows = [(weak, strong) for weak, strong, keep in zip(WEAK, STRONG, kept, strict=True) if keep]
    labels = [weak.index(max(weak)) for weak, _ in rows]
    assert step.logs["threshold"].item() == pytest.approx(0.05)
    assert step.keep.tolist() == kept
    assert 0 < len(rows) < N
    hard = mean_cross_entropy([strong for _, strong in rows], labels)
    assert step.logs["loss_unlabeled"].item() == pytest.approx(hard, rel=1e-5)


def test_a_step_that_keeps_nothing_has_the_labelled_loss():
    step = make_transparent(Dash, min_threshold=0.0).loss(BATCH, torch.tensor(0.9))
    assert not step.keep.any()
    assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y), rel=1e-5)
