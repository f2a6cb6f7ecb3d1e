"""Losses against numbers worked out by hand and torch.distributions."""

import math

import pytest
import torch

from npmatch.losses import cross_entropy_samples, entropy, masked_mean


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
