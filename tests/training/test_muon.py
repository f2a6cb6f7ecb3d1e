"""Muon against singular value decompositions and a plain loop over filter banks, in float64."""

import pytest
import torch
from torch import nn

from npmatch.algorithms import find_algorithm
from npmatch.algorithms.check import make_algorithm, make_batch
from npmatch.training import TrainingConfig, Update, muon
from npmatch.training.muon import STEPS, A, B, C, Set, divide, matrix_sides, orthogonal

# The last one is taller than wide.
SHAPES = [(16, 3, 3, 3), (8, 16, 3, 3), (8, 16, 3, 3), (12, 8, 1, 1), (40, 12, 1, 1)]


class Network(nn.Module):
    """Convolutions, each before a norm, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Module()
        layers = [nn.Sequential(nn.Conv2d(i, o, k, bias=False), nn.BatchNorm2d(o)) for o, i, k, _ in SHAPES[:2]]
        self.model.backbone = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.model.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.model.head(self.model.backbone(x))


def loss_of(network, seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(8, 3, 8, 8, generator=generator), torch.randint(2, (8,), generator=generator)
    return nn.functional.cross_entropy(network(x), y)


def by_singular_values(bank):
    """The oracle: the polynomial, five times, of the singular values of the flattened bank, in float64."""
    matrix = bank.double().permute(0, 2, 3, 1).flatten(1)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    s = s / matrix.norm()
    for _ in range(STEPS):
        s = A * s + B * s**3 + C * s**5
    return u * s @ vh


def make_banks():
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def test_matrices_become_orthogonal_and_keep_their_singular_vectors():
    banks = make_banks()
    together = Set(torch.tensor(0.1), banks)
    matrices = orthogonal(together.matrices(together.join(banks)))
    for bank, turned, matrix in zip(banks, together.split(together.numbers(matrices)), matrices, strict=True):
        o = turned.permute(0, 2, 3, 1).flatten(1)
        torch.testing.assert_close(o.double(), by_singular_values(bank.detach()), atol=1e-5, rtol=1e-4)
        assert torch.linalg.svdvals(o).sub(1).abs().max() < 0.35  # all directions alike, as Muon is made to do
        rows, columns = matrix_sides(bank)
        assert not matrix[rows:].any()
        assert not matrix[:, columns:].any()


def test_directions_without_a_gradient_stay_small():
    """A gradient of rank two, as of one image of each of two classes: rounding must not become directions."""
    torch.manual_seed(2)
    gradient = (torch.randn(1, 32, 2) @ torch.randn(1, 2, 144)).contiguous()
    values = torch.linalg.svdvals(orthogonal(gradient)[0])
    assert values[:2].min() > 0.65
    assert values[2:].max() < 0.01


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_banks_become_matrices_and_are_restored(memory_format):
    banks = [nn.Parameter(bank.detach().to(memory_format=memory_format)) for bank in make_banks()]
    together = Set(torch.tensor(0.1), banks)
    numbers = together.join(banks)
    restored = together.split(together.numbers(together.matrices(numbers)))
    assert all(torch.equal(p, q) for p, q in zip(banks, restored, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(banks, together.split(numbers), strict=True))


def test_sets_hold_every_bank_once_and_no_more_than_fits(monkeypatch):
    banks = make_banks()
    assert [set(map(id, one)) for one in divide(banks)] == [set(map(id, banks))]
    monkeypatch.setattr(muon, "MOST", 2 * 8 * 144)
    sets = list(divide(banks))
    assert sorted(map(id, banks)) == sorted(id(bank) for one in sets for bank in one)
    assert len(sets) > 1
    for one in sets:
        assert len(one) == 1 or Set(torch.tensor(0.1), one).places.numel() <= muon.MOST


@pytest.mark.parametrize("most", [muon.MOST, 1])
def test_steps_agree_with_a_plain_loop(most, monkeypatch):
    """Filters are turned as the equations say, together or in sets of one bank; the rest is SGD."""
    monkeypatch.setattr(muon, "MOST", most)
    ours, theirs = Network(), Network()
    config = TrainingConfig(optimizer="muon", filter_angle=0.1, learning_rate=0.2, schedule="constant")
    update = Update(ours, config)
    filters = {name: p.detach().double() for name, p in theirs.named_parameters() if p.dim() == 4}
    momenta = {name: torch.zeros_like(w) for name, w in filters.items()}
    rest = [p for p in theirs.parameters() if p.dim() != 4]
    vectors, matrices = ([p for p in rest if (p.dim() > 1) is many] for many in (False, True))
    groups = [{"params": vectors}, {"params": matrices, "weight_decay": config.weight_decay}]
    sgd = torch.optim.SGD(groups, lr=0.2, momentum=0.9, nesterov=True)
    for seed in range(4):
        update.set_progress(seed / 4)
        update(loss_of(ours, seed))
        theirs.zero_grad()
        loss_of(theirs, seed).backward()
        sgd.step()
        for name, w in filters.items():
            p = theirs.get_parameter(name)
            momenta[name] = 0.9 * momenta[name] + p.grad.double()
            o = by_singular_values(p.grad.double() + 0.9 * momenta[name])
            flat = w.permute(0, 2, 3, 1).flatten(1)
            turned = flat / flat.norm() - 0.1 * o / o.norm()
            flat = turned / turned.norm() * flat.norm()
            out, inputs, height, width = w.shape
            filters[name] = flat.view(out, height, width, inputs).permute(0, 3, 1, 2)
            p.data.copy_(filters[name])
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-4, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


def test_filters_keep_their_length_and_turn_by_the_angle():
    network = Network()
    before = {name: p.detach().clone() for name, p in network.named_parameters() if p.dim() == 4}
    update = Update(network, TrainingConfig(optimizer="muon", filter_angle=0.02, schedule="constant"))
    update(loss_of(network, 0))
    for name, w in before.items():
        p = network.get_parameter(name)
        assert p.norm().item() == pytest.approx(w.norm().item(), rel=1e-5)
        cosine = nn.functional.cosine_similarity(p.double().flatten(), w.double().flatten(), dim=0)
        assert torch.arccos(cosine).item() == pytest.approx(0.02, rel=0.05)  # less where they lie along the step


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_non_finite_gradient_turns_nothing(poison):
    network = Network()
    update = Update(network, TrainingConfig(optimizer="muon", clip=3.0))
    update(loss_of(network, 0))
    weights = {name: p.detach().clone() for name, p in network.named_parameters()}
    momenta = {name: m.clone() for name, m in update.state_dict().items()}
    update(loss_of(network, 1) * poison)
    assert all(torch.equal(p, weights[name]) for name, p in network.named_parameters())
    assert all(torch.equal(m, momenta[name]) for name, m in update.state_dict().items())


def test_the_momentum_is_restored():
    first, second = Network(), Network()
    config = TrainingConfig(optimizer="muon", filter_angle=0.1)
    straight, resumed = Update(first, config), Update(second, config)
    for seed in range(3):
        straight(loss_of(first, seed))
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict({name: value.clone() for name, value in straight.state_dict().items()})
    for network, update in ((first, straight), (second, resumed)):
        update(loss_of(network, 3))
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


def test_a_network_that_has_no_gradient_stays_as_it_is():
    """Meta Pseudo Labels updates a teacher and a student in turn."""
    algorithm = make_algorithm(find_algorithm("mpl"))
    update = Update(algorithm, TrainingConfig(optimizer="muon", filter_angle=0.1))
    numbers = {group.turns for group in update.groups}
    assert numbers == {0, 1, 2}, "filters of the two networks are turned apart"
    batch = make_batch(algorithm, 0)
    before = {name: p.detach().clone() for name, p in algorithm.named_parameters()}
    algorithm.train_step(batch, torch.tensor(0.5), lambda loss: None)
    assert all(torch.equal(p, before[name]) for name, p in algorithm.named_parameters())
    update.begin(batch.index)
    update.end(algorithm.train_step(batch, torch.tensor(0.5), update))
    assert update.bad.item() == 0
    assert any(not torch.equal(p, before[name]) for name, p in algorithm.named_parameters() if p.dim() == 4)
