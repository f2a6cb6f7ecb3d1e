"""Schedules, weight decay, clipping and averaging against plain formulas and torch's own SGD."""

import math

import pytest
import torch
from torch import nn

from npmatch.training import TrainingConfig, Update
from npmatch.training.update import learning_rate_factor


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.backbone = nn.Linear(3, 4)
        self.model.head = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))

    def forward(self, x):
        return self.model.head(self.model.backbone(x))


def loss_of(module, seed):
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    return module(x).square().mean()


def twins():
    first, second = Small(), Small()
    second.load_state_dict(first.state_dict())
    return first, second


def test_schedules():
    assert learning_rate_factor("cosine-7-16", 0.0) == 1
    assert learning_rate_factor("cosine-7-16", 1.0) == pytest.approx(math.cos(7 * math.pi / 16))
    assert learning_rate_factor("cosine-63-128", 1.0) == pytest.approx(math.cos(63 * math.pi / 128))
    assert learning_rate_factor("constant", 0.7) == 1


def test_steps_agree_with_plain_sgd_and_its_cosine():
    ours, theirs = twins()
    config = TrainingConfig(learning_rate=0.1, weight_decay=0.05)
    update = Update(ours, config)
    decayed = [p for p in theirs.parameters() if p.dim() > 1]
    plain = [p for p in theirs.parameters() if p.dim() == 1]
    sgd = torch.optim.SGD(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=0.1, momentum=0.9, nesterov=True,
    )  # fmt: skip
    average = {n: p.detach().clone() for n, p in theirs.named_parameters()}
    for k in range(6):
        update.set_progress(k / 6)
        update(loss_of(ours, k))
        update.ema.update()
        for group in sgd.param_groups:
            group["lr"] = 0.1 * math.cos(7 * math.pi / 16 * k / 6)
        sgd.zero_grad()
        loss_of(theirs, k).backward()
        sgd.step()
        for name, p in theirs.named_parameters():
            average[name] = 0.999 * average[name] + 0.001 * p.detach()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q)
        torch.testing.assert_close(update.ema.average[name], average[name])


def test_without_momentum_nesterovs_form_is_plain_descent():
    module, plain = twins()
    update = Update(module, TrainingConfig(momentum=0.0, nesterov=True, weight_decay=0.0, learning_rate=0.5))
    update(loss_of(module, 0))
    loss_of(plain, 0).backward()
    for p, q in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q - 0.5 * q.grad)


def test_clipping_bounds_backbone_and_head_apart():
    module, unclipped = twins()
    update = Update(
        module, TrainingConfig(clip=0.01, momentum=0.0, nesterov=False, weight_decay=0.0, learning_rate=1.0)
    )
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    update(100 * loss_of(module, 0))
    (100 * loss_of(unclipped, 0)).backward()
    for part in ("model.backbone", "model.head"):
        moved = torch.cat([(p - before[n]).flatten() for n, p in module.named_parameters() if n.startswith(part)])
        gradient = torch.cat([p.grad.flatten() for n, p in unclipped.named_parameters() if n.startswith(part)])
        assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)
        torch.testing.assert_close(-moved / moved.norm(), gradient / gradient.norm(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_non_finite_gradient_moves_neither_weights_nor_momentum(poison):
    module = Small()
    update = Update(module, TrainingConfig(clip=3.0))
    update(loss_of(module, 0))
    weights = {n: p.detach().clone() for n, p in module.named_parameters()}
    momentum = {n: m.clone() for n, m in update.state_dict().items()}
    update(loss_of(module, 1) * poison)
    assert all(torch.equal(p, weights[n]) for n, p in module.named_parameters())
    assert all(torch.equal(m, momentum[n]) for n, m in update.state_dict().items())
    assert update.bad.item() == 1


def test_averages_are_swapped_in_and_out():
    module = Small()
    update = Update(module, TrainingConfig(learning_rate=1.0))
    update(loss_of(module, 0))
    update.ema.update()
    live = {n: p.detach().clone() for n, p in module.named_parameters()}
    with update.ema.applied():
        assert any(not torch.equal(p, live[n]) for n, p in module.named_parameters())
        inside = {n: p.detach().clone() for n, p in module.named_parameters()}
    assert all(torch.equal(p, live[n]) for n, p in module.named_parameters())
    assert all(torch.equal(inside[n], a) for n, a in update.ema.average.items())
