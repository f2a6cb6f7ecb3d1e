"""Schedules, weight decay, clipping and averages against torch's own SGD, CosineAnnealingLR and AveragedModel."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from npmatch.algorithms import find_algorithm
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.errors import NPMatchError
from npmatch.training import TrainingConfig, Update
from npmatch.training.update import learning_rate_factor
from npmatch.types import Task


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


def torch_cosine(steps: int) -> list[float]:
    """Rates of torch's CosineAnnealingLR from 1 to 0 over steps + 1 steps, all but the last."""
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=steps + 1)
    rates = []
    for _ in range(steps + 1):
        rates.append(schedule.get_last_lr()[0])
        sgd.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(("schedule", "steps", "end"), [("cosine-7-16", 7, 0.19509), ("cosine-63-128", 63, 0.024541)])
def test_schedules_agree_with_torch(schedule, steps, end):
    """torch anneals by (1 + cos 2x) / 2 = cos² x."""
    factors = [learning_rate_factor(schedule, k / steps) for k in range(steps + 1)]
    assert [factor**2 for factor in factors] == pytest.approx(torch_cosine(steps))
    assert factors[-1] == pytest.approx(end, rel=1e-4)


def test_a_constant_schedule_keeps_the_rate():
    assert [learning_rate_factor("constant", progress) for progress in (0.0, 0.7, 1.0)] == [1, 1, 1]


def test_steps_agree_with_torchs_sgd_schedule_and_averages():
    ours, theirs = twins()
    update = Update(ours, TrainingConfig(learning_rate=0.1, weight_decay=0.05))
    decayed = [p for p in theirs.parameters() if p.dim() > 1]
    plain = [p for p in theirs.parameters() if p.dim() == 1]
    sgd = torch.optim.SGD(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=0.1, momentum=0.9, nesterov=True,
    )  # fmt: skip
    averaged = AveragedModel(theirs, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    averaged.update_parameters(theirs)  # the first call copies the weights
    for k, rate in enumerate(torch_cosine(7)):
        update.set_progress(k / 7)
        update(loss_of(ours, k))
        update.ema.update()
        for group in sgd.param_groups:
            group["lr"] = 0.1 * math.sqrt(rate)
        sgd.zero_grad()
        loss_of(theirs, k).backward()
        sgd.step()
        averaged.update_parameters(theirs)
    for (name, p), q, average in zip(
        ours.named_parameters(), theirs.parameters(), averaged.module.parameters(), strict=True
    ):
        torch.testing.assert_close(p, q)
        torch.testing.assert_close(update.ema.average[name], average)


def test_without_momentum_nesterovs_form_is_plain_descent():
    module, plain = twins()
    update = Update(module, TrainingConfig(momentum=0.0, nesterov=True, weight_decay=0.0, learning_rate=0.5))
    update(loss_of(module, 0))
    loss_of(plain, 0).backward()
    for p, q in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q - 0.5 * q.grad)


def test_clipping_bounds_backbone_and_head_separately():
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


def test_the_backbone_has_its_own_rate_and_may_wait_for_the_head():
    config = TrainingConfig(learning_rate=0.1, backbone_rate=0.25, head_first=0.5, schedule="constant", weight_decay=0)
    module, reference = twins()
    update = Update(module, config)
    for progress, rate in ((0.0, 0.0), (0.4, 0.0), (0.5, 0.025), (0.9, 0.025)):
        update.set_progress(progress)
        assert {round(float(g.rate), 6) for g in update.groups if g.in_backbone} == {rate}
        assert {round(float(g.rate), 6) for g in update.groups if not g.in_backbone} == {0.1}
    update.set_progress(0.0)
    update(loss_of(module, 0))
    assert torch.equal(module.model.backbone.weight, reference.model.backbone.weight)
    assert not torch.equal(module.model.head[1].weight, reference.model.head[1].weight)


def test_the_rate_warms_up():
    update = Update(Small(), TrainingConfig(learning_rate=0.1, warm_up=0.2, schedule="constant"))
    rates = []
    for progress in (0.0, 0.1, 0.2, 0.7):
        update.set_progress(progress)
        rates.append(float(update.learning_rate))
    assert rates == pytest.approx([0, 0.05, 0.1, 0.1])


def test_adamw_agrees_with_torchs_and_is_restored():
    config = TrainingConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.1, schedule="constant")
    module, reference = twins()
    update = Update(module, config)
    matrices, vectors = ([p for p in reference.parameters() if (p.dim() > 1) is many] for many in (True, False))
    adamw = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=0.01, weight_decay=0.1
    )
    for seed in range(4):
        if seed == 2:  # as after a resume
            state = {name: value.clone() for name, value in update.state_dict().items()}
            update = Update(module, config)
            update.load_state_dict(state)
        update.set_progress(seed / 4)
        update(loss_of(module, seed))
        adamw.zero_grad()
        loss_of(reference, seed).backward()
        adamw.step()
    trained = dict(module.named_parameters())
    for name, p in reference.named_parameters():
        if name != "model.backbone.bias":  # batch norm cancels it: its gradient is rounding, which AdamW enlarges
            assert torch.allclose(trained[name], p, atol=1e-6)


def test_layer_decay_is_applied_to_timms_layers():
    algorithm = find_algorithm("supervised")(
        make_backbone(BackboneConfig(name="timm:vit_tiny_patch16_224", input_size=32), 3), Task(("a", "b"), 2, 2), None
    )
    update = Update(
        algorithm, TrainingConfig(optimizer="adamw", learning_rate=1.0, layer_decay=0.5, schedule="constant")
    )
    update.set_progress(0.0)
    rate = {id(p): float(g.rate) for g in update.groups for p in g.parameters}
    network = algorithm.model.backbone.network
    blocks = [rate[id(block.attn.qkv.weight)] for block in network.blocks]
    assert [after / before for before, after in itertools.pairwise(blocks)] == pytest.approx([2.0] * 11)
    assert rate[id(network.patch_embed.proj.weight)] == pytest.approx(blocks[0] / 2)
    assert all(rate[id(p)] == 1 for p in algorithm.model.head.parameters())
    with pytest.raises(NPMatchError, match="layer_decay"):
        Update(Small(), TrainingConfig(layer_decay=0.5))
