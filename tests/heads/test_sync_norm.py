"""Batch norm over a process group of one rank against the norms of torch and timm that it replaces."""

import copy

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from npmatch.errors import NPMatchError
from npmatch.heads import SyncNorm, frozen_statistics, synchronise_norms
from npmatch.heads.sync_norm import learning_from_first


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


@pytest.mark.parametrize("weighted", [True, False])
def test_gradients_of_a_part_are_those_of_a_norm_with_this_part_alone(weighted):
    torch.manual_seed(0)
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64)
    alone = nn.Sequential(nn.BatchNorm2d(3, eps=1e-12, affine=weighted)).double()
    whole = copy.deepcopy(alone)
    synchronise_norms(whole)
    # The other images are the same ones, so that mean and variance of the whole batch are those of the part.
    one, both = x.clone().requires_grad_(), torch.cat([x, x.flip(0)]).requires_grad_()
    y = alone(one)
    y.sin().sum().backward()
    with learning_from_first(whole, 6):
        z = whole(both)
    torch.testing.assert_close(z[:6], y)
    z.sin().sum().backward()
    torch.testing.assert_close(both.grad[:6], one.grad)
    assert not both.grad[6:].any()
    for p, q in zip(whole.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_gradients_of_a_part_have_no_component_that_a_norm_undoes():
    torch.manual_seed(0)
    norm = nn.Sequential(nn.BatchNorm2d(3)).double()
    synchronise_norms(norm)
    x = torch.randn(9, 3, 4, 4, dtype=torch.float64)
    x[5:] = 2 * x[5:] + 3  # the others have another mean and variance
    x.requires_grad_()
    with learning_from_first(norm, 5):
        norm(x)[:5].sin().sum().backward()
    part = x.grad[:5]
    assert part.abs().max() > 1e-3
    torch.testing.assert_close(part.sum((0, 2, 3)), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close((part * x[:5]).sum((0, 2, 3)), torch.zeros(3, dtype=torch.float64))


def test_an_unknown_kind_of_norm_is_refused():
    class Strange(nn.BatchNorm2d):
        pass

    with pytest.raises(NPMatchError, match=r"Strange.*sync_norm=false"):
        synchronise_norms(nn.Sequential(Strange(3)))
