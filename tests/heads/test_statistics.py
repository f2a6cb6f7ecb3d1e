"""Frozen batch-norm statistics against an ordinary batch norm."""

import copy

import pytest
import torch

from npmatch.heads import frozen_statistics


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_outputs_are_equal_and_running_statistics_unchanged(training, momentum):
    norm = torch.nn.BatchNorm2d(3, momentum=momentum)
    norm(torch.randn(4, 3, 2, 2) + 1)
    norm.train(training)
    free, before, x = copy.deepcopy(norm), copy.deepcopy(norm.state_dict()), torch.randn(4, 3, 2, 2) - 1
    with frozen_statistics(torch.nn.Sequential(norm)):
        found = norm(x)
    assert torch.equal(found, free(x))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    norm(x)
    assert all(torch.equal(value, free.state_dict()[name]) for name, value in norm.state_dict().items())


def test_a_norm_without_running_statistics_stays_without():
    norm = torch.nn.BatchNorm2d(3, track_running_stats=False)
    with frozen_statistics(norm):
        norm(torch.randn(4, 3, 2, 2))
    assert not norm.track_running_stats
