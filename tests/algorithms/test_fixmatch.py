"""FixMatch's step against the paper's equations in plain Python."""

import math

import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

from npmatch.algorithms.check import check_algorithm
from npmatch.algorithms.fixmatch import FixMatch


@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
def test_it_passes_all_checks(weak_norm):
    assert check_algorithm(FixMatch, FixMatch.Config(confidence=0.3, weak_norm=weak_norm)) is None


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_loss_is_equations_3_and_4_with_loops_and_row_selection(weight):
    total, trusted = 0.0, []
    for weak, strong in zip(WEAK, STRONG, strict=True):
        q = softmax(weak)
        trusted.append(max(q) >= 0.9)
        if trusted[-1]:
            total += -math.log(softmax(strong)[q.index(max(q))])
    step = make_transparent(FixMatch, confidence=0.9, unlabeled_weight=weight).loss(
        make_batch(X, Y, WEAK, STRONG), torch.tensor(0.0)
    )
    assert trusted == [True, False, False, True, False, True] == step.keep.tolist()
    assert step.pseudo.tolist() == [0, 1, 2, 2, 1, 1]
    assert step.logs["loss_unlabeled"].item() == pytest.approx(total / len(WEAK), rel=1e-5)  # over all, not 3
    assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y) + weight * total / len(WEAK), rel=1e-5)


def test_no_gradient_goes_through_the_pseudo_label():
    algorithm = make_transparent(FixMatch, confidence=0.9)
    batch = make_batch(X, Y, WEAK, STRONG)
    batch.weak[0].requires_grad_()
    batch.strong[0].requires_grad_()
    algorithm.loss(batch, torch.tensor(0.0)).loss.backward()
    assert not batch.weak[0].grad.any()
    assert batch.strong[0].grad.flatten(1).any(1).tolist() == [True, False, False, True, False, True]
