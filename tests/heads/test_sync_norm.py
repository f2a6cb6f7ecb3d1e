"""Batch norm over a process group of one rank against the norms of torch and timm that it replaces."""

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from npmatch.errors import NPMatchError
from npmatch.heads import SyncNorm, frozen_statistics, synchronise_norms


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm2d(3, momentum=0.3), lambda: BatchNormAct2d(3)])
def test_a_synchronised_norm_is_the_norm_it_replaces(one_rank, make):
    torch.manual_seed(0)
    plain = nn.Sequential(make()).double()
    with torch.no_grad():
        plain[0].weight.uniform_(0.5, 2)
        plain[0].bias.normal_()
    synchronised = nn.Sequential(make()).double()
    synchronised.load_state_dict(plain.state_dict())
    synchronise_norms(synchronised)
    assert isinstance(synchronised[0], SyncNorm)
    for training in (True, True, False):
        x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
        results = []
        for network in (plain, synchronised):
            network.train(training)
            network.zero_grad()
            leaf = x.clone().requires_grad_()
            y = network(leaf)
            y.square().sin().sum().backward()
            results.append([y, leaf.grad, network[0].weight.grad, network[0].bias.grad])
        torch.testing.assert_close(*results)
    torch.testing.assert_close(synchronised.state_dict(), plain.state_dict())
    before = {name: value.clone() for name, value in synchronised.state_dict().items()}
    with frozen_statistics(synchronised.train()):
        synchronised(torch.randn(5, 3, 4, 4, dtype=torch.float64))
    torch.testing.assert_close(dict(synchronised.state_dict()), before)


def test_an_unknown_kind_of_norm_is_refused():
    class Strange(nn.BatchNorm2d):
        pass

    with pytest.raises(NPMatchError, match=r"Strange.*sync_norm=false"):
        synchronise_norms(nn.Sequential(Strange(3)))
