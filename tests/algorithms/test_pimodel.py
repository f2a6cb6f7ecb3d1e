"""The Π-model's step against NumPy in float64; equal views agree."""

import numpy as np
import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy

from npmatch.algorithms import check
from npmatch.algorithms.pimodel import PiModel

FIRST, SECOND = np.array(WEAK), np.array(STRONG)


def two_views(first, second):
    batch = make_batch(X, Y, first, second)
    return batch._replace(weak=(*batch.weak, *batch.strong), strong=())


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("options", [{}, {"ramp": 0.0}])
def test_it_passes_all_checks(options):
    assert check.check_algorithm(PiModel, PiModel.Config(**options)) is None


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.0), (0.1, 2.5), (0.4, 10.0), (1.0, 10.0)])
def test_the_loss_is_a_mean_over_images_and_classes(progress, weight):
    squares = (softmax(FIRST) - softmax(SECOND)) ** 2
    step = make_transparent(PiModel).loss(two_views(WEAK, STRONG), torch.tensor(progress))
    assert step.logs["unlabeled_weight"].item() == pytest.approx(weight)
    assert step.logs["loss_unlabeled"].item() == pytest.approx(squares.sum() / (6 * 3), rel=1e-5)
    assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y) + weight * squares.mean(), rel=1e-5)
    assert step.pseudo.tolist() == SECOND.argmax(-1).tolist()
    assert step.keep.all()


def test_equal_views_give_a_loss_of_zero():
    a = check.make_algorithm(PiModel)
    batch = check.make_batch(a)
    step = a.loss(batch._replace(weak=(batch.weak[0], batch.weak[0])), torch.tensor(1.0))
    assert step.logs["loss_unlabeled"] == 0
    assert torch.equal(step.loss.detach(), step.logs["loss_labeled"])
    assert a.loss(batch, torch.tensor(1.0)).logs["loss_unlabeled"] > 0


def test_the_gradient_flows_through_the_first_view_alone():
    batch = two_views(WEAK, STRONG)
    for view in batch.weak:
        view.requires_grad_()
    make_transparent(PiModel).loss(batch, torch.tensor(1.0)).loss.backward()
    p, difference = softmax(FIRST), 2 * 10 / 18 * (softmax(FIRST) - softmax(SECOND))
    expected = p * (difference - (p * difference).sum(-1, keepdims=True))  # the Jacobian of the softmax, transposed
    np.testing.assert_allclose(batch.weak[0].grad.flatten(1).numpy(), expected, atol=1e-6)
    assert batch.weak[1].grad is None


def test_each_view_is_normalised_by_itself_and_leaves_the_running_statistics():
    a, sizes = check.make_algorithm(PiModel), []
    a.model.backbone.norm.register_forward_hook(lambda module, x, out: sizes.append((len(out), out.requires_grad)))
    a.loss(check.make_batch(a), torch.tensor(1.0))
    unlabeled = check.BATCH * check.RATIO
    assert sizes == [(check.BATCH, True), (unlabeled, True), (unlabeled, False)]
    assert a.model.backbone.norm.num_batches_tracked == 1
