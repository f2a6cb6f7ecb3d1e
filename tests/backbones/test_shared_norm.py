"""Batch norm over all rows with gradients through the first of them."""

import pytest
import torch
from torch import nn

from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.backbones.shared_norm import learning_rows, only_first_learn


@pytest.fixture
def network():
    torch.manual_seed(0)
    return make_backbone(BackboneConfig("cnn"), 1).double()


def test_values_and_statistics_are_those_of_one_batch(network):
    x = torch.randn(12, 1, 8, 8, dtype=torch.float64)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    joint = network(x)
    moved = {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(state)
    with only_first_learn(5):
        shared = network(x)
    torch.testing.assert_close(shared, joint, rtol=0, atol=1e-12)
    torch.testing.assert_close(network.state_dict(), moved, rtol=0, atol=1e-12)


def test_gradients_are_batch_norms_own_where_all_rows_learn(network):
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    (joint,) = gradients(network, network(x))
    with only_first_learn(6):
        f = network(x)
    torch.testing.assert_close(gradients(network, f)[0], joint, rtol=0, atol=1e-12)


def test_rows_beside_get_no_gradient():
    norm = nn.BatchNorm2d(3)
    x = torch.randn(7, 3, 4, 4, requires_grad=True)
    with only_first_learn(4):
        y = norm(x)
    (y * torch.randn_like(y)).sum().backward()
    assert x.grad[:4].abs().min() > 0
    assert torch.equal(x.grad[4:], torch.zeros(3, 3, 4, 4))


def test_like_rows_beside_change_nothing():
    """Means over the learning rows stand for means over all: exact where the rows beside are copies of them."""
    norm, x, d = nn.BatchNorm1d(3).double(), torch.randn(5, 3).double(), torch.randn(5, 3).double()
    alone = x.clone().requires_grad_()
    norm(alone).backward(d)
    twice = torch.cat([x, x]).requires_grad_()
    with only_first_learn(5):
        y = norm(twice)
    y[:5].backward(d)
    torch.testing.assert_close(twice.grad[:5], alone.grad)


def test_a_normalised_weights_gradient_is_at_a_right_angle_to_it():
    """Where the rows beside are distributed alike; otherwise the angle is near a right one."""
    torch.manual_seed(0)
    layer, norm = nn.Linear(4, 6, bias=False).double(), nn.BatchNorm1d(6, eps=0).double()
    x = torch.randn(500, 4, dtype=torch.float64)
    with only_first_learn(250):
        y = norm(layer(x))[:250]
    y.backward(torch.randn_like(y))
    cosine = torch.cosine_similarity(layer.weight.grad, layer.weight, dim=1)
    assert cosine.abs().max() < 0.1


def test_what_is_said_ends_with_the_block():
    assert learning_rows(9) == 9
    with only_first_learn(4):
        assert learning_rows(9) == 4
    assert learning_rows(9) == 9


def gradients(network: nn.Module, f: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad((f * torch.arange(f.numel()).view_as(f)).sum(), [next(network.parameters())])
