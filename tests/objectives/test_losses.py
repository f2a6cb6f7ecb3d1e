"""Losses against numbers worked out by hand and torch.distributions."""

import math

import pytest
import scipy.stats
import torch
import torch.nn.functional as F

from npmatch.objectives.losses import cross_entropy_samples, entropy, masked_mean, mixup, one_hot, ramp_up, sharpen


def test_entropy_agrees_with_torch_distributions():
    probs = torch.softmax(torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), -1)
    torch.testing.assert_close(entropy(probs), torch.distributions.Categorical(probs=probs).entropy())


def test_entropy_and_its_gradient_are_finite_at_certainty():
    probs = torch.tensor([[1.0, 0.0, 0.0]], requires_grad=True)
    h = entropy(probs)
    h.sum().backward()
    assert h.item() == 0
    assert probs.grad is not None
    assert probs.grad.isfinite().all()


def test_masked_mean_is_the_mean_of_the_selected_rows_and_0_of_none():
    values = torch.arange(12.0).view(4, 3)
    keep = torch.tensor([True, False, True, False])
    torch.testing.assert_close(masked_mean(values, keep), values[keep].mean(0))
    assert masked_mean(values, torch.zeros(4)).tolist() == [0, 0, 0]


def test_cross_entropy_of_samples_is_the_mean_over_samples_not_of_the_mean_prediction():
    # Two samples that disagree: log-loss 0.105 and 2.303; the averaged prediction would give 0.693.
    p = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]])
    loss = cross_entropy_samples(p.log(), torch.tensor([0]))
    assert loss.shape == (1,)
    assert loss.item() == pytest.approx(-(math.log(0.9) + math.log(0.1)) / 2, rel=1e-5)


def test_one_hot_agrees_with_torch():
    y = torch.tensor([2, 0, 3, 3])
    assert torch.equal(one_hot(y, 5), F.one_hot(y, 5).float())


def test_sharpening_by_hand():
    # Squares of 1/2, 1/4, 1/4 are in the ratio 4 : 1 : 1.
    assert sharpen(torch.tensor([0.5, 0.25, 0.25]), 0.5).tolist() == pytest.approx([4 / 6, 1 / 6, 1 / 6])
    p = torch.tensor([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(sharpen(p, 1.0), p)
    torch.testing.assert_close(sharpen(p, 0.01), torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    assert sharpen(torch.full((1, 1000), 0.001), 0.05).tolist()[0] == pytest.approx([0.001] * 1000)


@pytest.mark.parametrize("alpha", [0.5, 0.75])
def test_mixup_has_the_right_ratios_and_pairs_each_row_with_one_other(alpha):
    torch.manual_seed(0)
    n = 1000
    mixed, targets = mixup(torch.eye(n).view(n, 1, n, 1), torch.eye(n), alpha)  # result row i: weights of all rows
    weights = mixed.view(n, n)
    torch.testing.assert_close(targets, weights)
    torch.testing.assert_close(weights.sum(1), torch.ones(n))
    ratio = weights.diagonal()
    assert (ratio >= 0.5).all()
    others = weights - torch.diag(ratio)
    assert ((others > 0).sum(1) <= 1).all()
    assert ((others > 0).sum(0) <= 1).all(), "no row is the partner of two"
    # max(λ, 1 − λ) of a symmetric Beta has the distribution function 2 F(x) − 1 on [½, 1].
    found = scipy.stats.kstest(ratio.numpy(), lambda x: 2 * scipy.stats.beta.cdf(x, alpha, alpha) - 1)
    assert found.pvalue > 0.001


@pytest.mark.parametrize("drawn", [0.0, 0.5, 1.0])
def test_mixup_at_its_endpoints(monkeypatch, drawn):
    monkeypatch.setattr(torch.distributions.Beta, "sample", lambda beta: torch.full_like(beta.mean, drawn))
    weights, targets = mixup(torch.eye(8), torch.eye(8), 0.5)
    assert torch.equal(weights, targets)
    if drawn == 0.5:  # both weights are equal, and a row may be its own partner
        assert set(weights.flatten().tolist()) <= {0.0, 0.5, 1.0}
        assert torch.equal(weights.sum(0), torch.ones(8))
    else:  # λ' = 1: nothing is mixed
        assert torch.equal(weights, torch.eye(8))


def test_ramps():
    at = [ramp_up(torch.tensor(t), 0.4).item() for t in (0.0, 0.2, 0.4, 0.5, 1.0)]
    assert at == pytest.approx([0, 0.5, 1, 1, 1])
    assert ramp_up(torch.tensor(0.0), 0.0) == 1
