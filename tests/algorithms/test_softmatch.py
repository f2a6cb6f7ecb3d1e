"""SoftMatch's step against its definition in plain Python and NumPy, and against FixMatch where the two must agree."""

import math

import numpy as np
import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

from npmatch.algorithms.check import check_algorithm
from npmatch.algorithms.fixmatch import FixMatch
from npmatch.algorithms.softmatch import SoftMatch

K, N = 3, len(WEAK)


@pytest.mark.parametrize("alignment", [True, False])
@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
def test_it_passes_all_checks(weak_norm, alignment):
    assert check_algorithm(SoftMatch, SoftMatch.Config(weak_norm=weak_norm, alignment=alignment)) is None


@pytest.mark.parametrize("alignment", [True, False])
def test_four_steps_are_the_papers_algorithm_with_numpy(alignment):
    m, n = 0.6, 3.0
    algorithm = make_transparent(SoftMatch, decay=m, sigmas=n, alignment=alignment, unlabeled_weight=0.5)
    mu, variance, mean = 1 / K, 1.0, np.full(K, 1 / K)
    for turn in range(4):
        weak = WEAK[turn:] + WEAK[:turn]
        q = np.array([softmax(row) for row in weak])
        mu = m * mu + (1 - m) * q.max(1).mean()
        variance = m * variance + (1 - m) * q.max(1).var(ddof=1)
        mean = m * mean + (1 - m) * q.mean(0)
        total, weights = 0.0, []
        for row, strong in zip(q, STRONG, strict=True):
            aligned = row / mean / (row / mean).sum() if alignment else row
            distance = min(aligned.max() - mu, 0)
            weights.append(math.exp(-(distance**2) * n**2 / (2 * variance)))
            total += weights[-1] * -math.log(softmax(strong)[int(row.argmax())])  # the label is that of q
        step = algorithm.loss(make_batch(X, Y, weak, STRONG), torch.tensor(0.0))
        assert step.keep.tolist() == pytest.approx(weights, rel=1e-5)
        assert step.pseudo.tolist() == q.argmax(1).tolist()
        assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y) + 0.5 * total / N, rel=1e-5)
        assert 0 < min(weights) < max(weights) == 1


def test_alignment_changes_the_weight_of_a_pseudo_label_but_not_the_label():
    """Predictions lean to the first class, so aligned ones lean to the second: the label stays the first."""
    weak = [[2.0, 0.0, 0.0]] * 5 + [[0.1, 0.0, 0.0]]
    batch = make_batch(X, Y, weak, STRONG)
    aligned, plain = (
        make_transparent(SoftMatch, decay=0.0, alignment=alignment).loss(batch, torch.tensor(0.0))
        for alignment in (True, False)
    )
    assert aligned.pseudo.tolist() == plain.pseudo.tolist() == [0] * 6
    assert aligned.keep[5] > plain.keep[5]


def test_many_sigmas_are_a_threshold_at_the_mean_confidence():
    batch = make_batch(X, Y, WEAK, STRONG)
    confidence = [max(softmax(row)) for row in WEAK]
    mean = sum(confidence) / N
    soft = make_transparent(SoftMatch, decay=0.0, sigmas=1e6, alignment=False).loss(batch, torch.tensor(0.0))
    fixed = make_transparent(FixMatch, confidence=mean).loss(batch, torch.tensor(0.0))
    assert soft.keep.tolist() == [float(c >= mean) for c in confidence]
    assert torch.equal(soft.keep.bool(), fixed.keep)
    assert soft.loss.item() == pytest.approx(fixed.loss.item(), rel=1e-6)


def test_no_gradient_goes_through_the_weight():
    batch = make_batch(X, Y, WEAK, STRONG)
    batch.weak[0].requires_grad_()
    batch.strong[0].requires_grad_()
    make_transparent(SoftMatch).loss(batch, torch.tensor(0.0)).loss.backward()
    assert not batch.weak[0].grad.any()
    assert batch.strong[0].grad.flatten(1).any(1).all(), "no image is excluded"
