"""DeFixMatch's step in plain Python, against FixMatch, and against the supervised loss where the bias cancels."""

import math

import pytest
import torch
from logits_as_images import STRONG, WEAK, X_STRONG, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

from npmatch.algorithms.check import check_algorithm, make_algorithm
from npmatch.algorithms.check import make_batch as make_random_batch
from npmatch.algorithms.defixmatch import DeFixMatch
from npmatch.algorithms.fixmatch import FixMatch

START = torch.tensor(0.0)


@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
def test_it_passes_all_checks(weak_norm):
    assert check_algorithm(DeFixMatch, DeFixMatch.Config(confidence=0.3, weak_norm=weak_norm)) is None


def plain_fixmatch(weak, strong, threshold):
    """FixMatch's unlabelled loss with row selection, divided by all images."""
    total = 0.0
    for row, other in zip(weak, strong, strict=True):
        q = softmax(row)
        if max(q) >= threshold:
            total += -math.log(softmax(other)[q.index(max(q))])
    return total / len(weak)


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_loss_is_the_papers_with_loops_and_row_selection(weight):
    x, threshold = [[3.0, 0.0, 0.0], [0.0, 0.5, 0.0]], 0.8  # the first labelled image is confident
    step = make_transparent(DeFixMatch, confidence=threshold, unlabeled_weight=weight).loss(
        make_batch(x, Y, WEAK, STRONG, X_STRONG), START
    )
    supervised = (mean_cross_entropy(x, Y) + mean_cross_entropy(X_STRONG, Y)) / 2
    unlabeled, labeled = plain_fixmatch(WEAK, STRONG, threshold), plain_fixmatch(x, X_STRONG, threshold)
    assert labeled > 0
    assert step.loss.item() == pytest.approx(supervised + weight * (unlabeled - labeled), rel=1e-5)
    assert step.keep.tolist() == [max(softmax(row)) >= threshold for row in WEAK]
    assert step.pseudo.tolist() == [row.index(max(row)) for row in WEAK]


def test_if_the_unlabelled_images_are_the_labelled_ones_only_the_supervised_loss_remains():
    """View for view; loss and gradient are those without pseudo-labels."""

    def step_with(weight):
        algorithm = make_algorithm(DeFixMatch, DeFixMatch.Config(confidence=0.25, unlabeled_weight=weight))
        random = make_random_batch(algorithm)
        batch = random._replace(weak=(random.x,), strong=random.x_strong, index=torch.arange(len(random.x)))
        step = algorithm.loss(batch, START)
        step.loss.backward()
        return step, [p.grad for p in algorithm.parameters()]

    (debiased, gradients), (supervised, expected) = step_with(0.5), step_with(0.0)
    assert debiased.keep.any()
    assert torch.equal(debiased.loss, supervised.loss)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_where_no_labelled_image_is_confident_it_is_fixmatch_on_the_unlabelled_ones():
    batch = make_batch(X, Y, WEAK, STRONG, X_STRONG)
    debiased = make_transparent(DeFixMatch, confidence=0.9).loss(batch, START)
    fixed = make_transparent(FixMatch, confidence=0.9).loss(batch, START)
    assert debiased.logs["loss_debias"] == 0
    assert torch.equal(debiased.logs["loss_unlabeled"], fixed.logs["loss_unlabeled"])
    assert torch.equal(debiased.keep, fixed.keep)


def test_the_subtracted_term_has_a_gradient_by_the_strong_labelled_view_alone():
    """By hand, for one confident image: gradient of CE(y) less λ times that of CE(pseudo-label), both p − one-hot."""
    x, x_strong, y = [[5.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]], [1]
    batch = make_batch(x, y, WEAK, STRONG, x_strong)
    batch.x.requires_grad_()
    batch.x_strong[0].requires_grad_()
    make_transparent(DeFixMatch, unlabeled_weight=0.5).loss(batch, START).loss.backward()
    p, p_strong = softmax(x[0]), softmax(x_strong[0])
    expected = [(p_strong[k] - (k == 1)) / 2 - 0.5 * (p_strong[k] - (k == 0)) for k in range(3)]
    assert batch.x_strong[0].grad.flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert batch.x.grad.flatten().tolist() == pytest.approx([(p[k] - (k == 1)) / 2 for k in range(3)], abs=1e-6)
