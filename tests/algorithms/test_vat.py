"""VAT's direction against the Hessian of a linear softmax in float64, and its step in plain Python."""

import math
from dataclasses import replace

import pytest
import torch
from logits_as_images import WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax
from torch import nn

from npmatch.algorithms import check
from npmatch.algorithms.vat import VAT, unit_length
from npmatch.types import Task


def algorithm(**options) -> VAT:
    return check.make_algorithm(VAT, VAT.Config(**options))


class Linear(nn.Module):
    """One linear layer from the pixels to the features."""

    num_features = 5

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2 * 4 * 4, 5)

    def forward(self, x):
        return self.layer(x.flatten(1))


@pytest.mark.parametrize("options", [{}, {"ramp": 0.0, "radius": 1.0, "step": 0.1}])
def test_it_passes_all_checks(options):
    assert check.check_algorithm(VAT, VAT.Config(**options)) is None


@pytest.mark.parametrize(("dtype", "step", "least"), [(torch.float64, 1e-6, 1 - 1e-6), (torch.float32, 1e-3, 1 - 1e-3)])
def test_the_direction_of_a_linear_softmax_is_its_hessian_times_the_draw(dtype, step, least):
    """By hand: the Hessian of KL(q ‖ p(u + d)) at d = 0 is Wᵀ(diag q − qqᵀ)W."""
    torch.manual_seed(0)
    a = VAT(Linear(), Task(("a", "b", "c"), 6, 6), VAT.Config(step=step, radius=6.0)).to(dtype)
    u, drawn = torch.randn(6, 2, 4, 4, dtype=dtype), torch.randn(6, 2, 4, 4, dtype=dtype)
    found = a.perturbation(u, drawn).flatten(1).double()
    w = (a.model.head.weight @ a.model.backbone.layer.weight).detach().double()
    b = (a.model.head.weight @ a.model.backbone.layer.bias + a.model.head.bias).detach().double()
    for image, d, r in zip(u.flatten(1).double(), drawn.flatten(1).double(), found, strict=True):
        q = (w @ image + b).softmax(-1)
        expected = w.T @ (q.diag() - q.outer(q)) @ w @ d
        assert r.norm().item() == pytest.approx(6)
        assert (r @ expected / (r.norm() * expected.norm())).item() > least


def test_the_perturbation_changes_the_prediction_more_than_its_draw():
    a = algorithm(radius=0.5)
    batch = check.make_batch(a)
    u, drawn = batch.weak[0], torch.randn(len(batch.weak[0]), 1, check.SIDE, check.SIDE)
    q = a.model(u).probs
    moved = [(a.model(u + r).probs - q).abs().sum() for r in (a.perturbation(u, drawn), 0.5 * unit_length(drawn))]
    assert moved[0] > 2 * moved[1]


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.0), (0.1, 0.25), (0.4, 1.0), (1.0, 1.0)])
def test_the_loss_is_that_of_loops_over_perturbed_images(progress, weight):
    a, batch = make_transparent(VAT, radius=0.7, unlabeled_weight=1.0), make_batch(X, Y, WEAK, WEAK)
    torch.manual_seed(3)
    r_adv = a.perturbation(batch.weak[0], torch.randn(6, 3, 1, 1)).flatten(1).tolist()
    divergence = entropy = 0.0
    for row, r in zip(WEAK, r_adv, strict=True):
        assert math.hypot(*r) == pytest.approx(0.7, rel=1e-5)
        q, p = softmax(row), softmax([z + change for z, change in zip(row, r, strict=True)])
        divergence += sum(a * math.log(a / b) for a, b in zip(q, p, strict=True)) / len(WEAK)
        entropy -= sum(a * math.log(a) for a in q) / len(WEAK)
    torch.manual_seed(3)
    step = a.loss(batch, torch.tensor(progress))
    assert step.logs["unlabeled_weight"].item() == pytest.approx(weight)
    assert step.logs["loss_unlabeled"].item() == pytest.approx(divergence, rel=1e-4)
    assert step.logs["loss_entropy"].item() == pytest.approx(entropy, rel=1e-5)
    expected = mean_cross_entropy(X, Y) + weight * divergence + 0.06 * entropy  # the entropy has no ramp
    assert step.loss.item() == pytest.approx(expected, rel=1e-5)
    assert step.pseudo.tolist() == [0, 1, 2, 2, 1, 1]
    assert step.keep.all()


def test_the_gradient_takes_the_target_and_the_perturbation_as_given():
    """By hand, at the logits: p_adv − q of the divergence and −p_k (log p_k + H) of the entropy."""
    a, batch = make_transparent(VAT, radius=2.0, unlabeled_weight=3.0), make_batch(X, Y, WEAK, WEAK)
    torch.manual_seed(3)
    r_adv = a.perturbation(batch.weak[0], torch.randn(6, 3, 1, 1)).flatten(1).tolist()
    batch.weak[0].requires_grad_()
    torch.manual_seed(3)
    a.loss(batch, torch.tensor(1.0)).loss.backward()
    for row, r, gradient in zip(WEAK, r_adv, batch.weak[0].grad.flatten(1).tolist(), strict=True):
        q, p_adv = softmax(row), softmax([z + change for z, change in zip(row, r, strict=True)])
        h = -sum(v * math.log(v) for v in q)
        terms = [3 * (moved - v) - 0.06 * v * (math.log(v) + h) for v, moved in zip(q, p_adv, strict=True)]
        assert gradient == pytest.approx([term / 6 for term in terms], abs=1e-5)


def test_finding_the_direction_leaves_no_gradient_and_no_other_trace():
    a = algorithm()
    before = {name: value.clone() for name, value in a.state_dict().items()}
    batch = check.make_batch(a)
    a.model.autocast = torch.bfloat16
    r_adv = a.perturbation(batch.weak[0], torch.randn_like(batch.weak[0]))
    assert not r_adv.requires_grad
    assert all(p.grad is None for p in a.parameters())
    assert all(torch.equal(value, before[name]) for name, value in a.state_dict().items())
    assert a.model.autocast is torch.bfloat16
    assert torch.backends.cudnn.allow_tf32


def test_the_direction_is_found_in_full_precision_and_without_dropout():
    a, batch = algorithm(), check.make_batch(algorithm())
    a.model.backbone = nn.Sequential(nn.Dropout(0.5), a.model.backbone)
    drawn = torch.randn_like(batch.weak[0])
    found = []
    for autocast in (None, torch.bfloat16):
        a.model.autocast = autocast
        found.append(a.perturbation(batch.weak[0], drawn))
    assert torch.equal(*found)
    assert a.model.backbone[0].training


def test_where_nothing_can_change_the_prediction_nothing_is_perturbed():
    a = algorithm()
    with torch.no_grad():
        a.model.head.weight.zero_()
    batch = check.make_batch(a)
    assert not a.perturbation(batch.weak[0], torch.randn_like(batch.weak[0])).any()
    tiny = torch.full((1, 1, 2, 2), 1e-30)
    torch.testing.assert_close(unit_length(tiny), torch.full((1, 1, 2, 2), 0.5))


def test_each_pass_is_normalised_by_itself_and_leaves_the_running_statistics():
    a, sizes = algorithm(), []
    a.model.backbone.norm.register_forward_hook(lambda module, x, out: sizes.append((len(out), out.requires_grad)))
    a.config = replace(a.config, radius=0.1)
    a.loss(check.make_batch(a), torch.tensor(1.0))
    u = check.BATCH * check.RATIO
    assert sizes == [(check.BATCH, True), (u, False), (u, True), (u, True), (u, True)]
    assert a.model.backbone.norm.num_batches_tracked == 1
