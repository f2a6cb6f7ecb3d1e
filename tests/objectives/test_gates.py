"""Every gate against the rule of its method in plain Python and NumPy, with and without alignment and a limit on u."""

import math
from collections import Counter, deque

import numpy as np
import pytest
import torch

from npmatch.objectives.gates import GATES, GateSettings
from npmatch.objectives.selection import make_alignment

K, IMAGES, U, STEPS, WINDOW = 3, 8, 6, 9, 2
CONFIDENCE, DECAY = 0.8, 0.6

Batch = tuple[np.ndarray, np.ndarray, list[int]]  # p, u, index


def make(name: str, alignment: bool | str = False, max_entropy: float = math.inf, align_labels: bool = False):
    align = make_alignment(alignment, WINDOW, K)
    return GATES[name](GateSettings(IMAGES, K, CONFIDENCE, DECAY, align, max_entropy, align_labels))


def batches() -> list[Batch]:
    """Batches of random predictions, more confident in every step and leaning to class 0."""
    draw = np.random.default_rng(0)
    made = []
    for step in range(STEPS):
        odds = np.exp((1 + 0.5 * step) * draw.normal(size=(U, K)) + np.array([0.8, 0.0, 0.0]))
        p = odds / odds.sum(1, keepdims=True)
        made.append((p, -(p * np.log(p)).sum(1), draw.permutation(IMAGES)[:U].tolist()))
    return made


def aligned_batches(alignment: bool | str) -> list[np.ndarray]:
    means, aligned = deque(maxlen=WINDOW if alignment == "window" else 1), []
    for p, _, _ in batches():
        means.append(p.mean(0))
        ratio = p / np.mean(means, axis=0)
        aligned.append(ratio / ratio.sum(1, keepdims=True) if alignment else p)
    return aligned


def plain_fixed(alignment: bool | str, limit: float):
    for a, (_, u, _) in zip(aligned_batches(alignment), batches(), strict=True):
        yield a.argmax(1), [max(row) >= CONFIDENCE and h < limit for row, h in zip(a, u, strict=True)]


def plain_curriculum(alignment: bool | str, limit: float):
    """The class of every image is kept in a dictionary, and the thresholds are made from all of them."""
    assigned: dict[int, int] = {}
    for a, (_, u, index) in zip(aligned_batches(alignment), batches(), strict=True):
        counts = Counter(assigned.values())
        largest = max([IMAGES - len(assigned), *counts.values()])
        betas = [counts[c] / largest for c in range(K)]
        keep = []
        for row, h, image in zip(a, u, index, strict=True):
            label = int(row.argmax())
            keep.append(row[label] > CONFIDENCE * betas[label] / (2 - betas[label]) and h < limit)
            if row[label] >= CONFIDENCE and h <= limit:
                assigned[image] = label
        yield a.argmax(1), keep


def plain_freematch(alignment: bool | str, limit: float):
    tau, p_tilde = 1 / K, [1 / K] * K
    for a, (_, u, _) in zip(aligned_batches(alignment), batches(), strict=True):
        tau = DECAY * tau + (1 - DECAY) * sum(max(row) for row in a) / U
        p_tilde = [DECAY * old + (1 - DECAY) * sum(row[c] for row in a) / U for c, old in enumerate(p_tilde)]
        thresholds = [tau * share / max(p_tilde) for share in p_tilde]
        keep = [max(row) >= thresholds[row.argmax()] and h < limit for row, h in zip(a, u, strict=True)]
        yield a.argmax(1), keep


def plain_softmatch(alignment: bool | str, limit: float, align_labels: bool = False):
    """Labels, mean and variance are those of p or of the aligned prediction, the weights always those of the latter."""
    mu, variance = 1 / K, 1.0
    for a, (p, u, _) in zip(aligned_batches(alignment), batches(), strict=True):
        p = a if align_labels else p
        mu = DECAY * mu + (1 - DECAY) * p.max(1).mean()
        variance = DECAY * variance + (1 - DECAY) * p.max(1).var(ddof=1)
        distance = [min(max(row) - mu, 0.0) for row in a]
        weights = [math.exp(-((2 * d) ** 2) / (2 * variance)) for d in distance]
        yield p.argmax(1), [w if h < limit else 0.0 for w, h in zip(weights, u, strict=True)]


PLAIN = {
    "fixed": plain_fixed,
    "curriculum": plain_curriculum,
    "freematch": plain_freematch,
    "softmatch": plain_softmatch,
}


@pytest.mark.parametrize("limit", [math.inf, 0.5])
@pytest.mark.parametrize("alignment", [False, True, "window"])
@pytest.mark.parametrize("name", sorted(GATES))
def test_every_gate_follows_its_methods_rule(name, alignment, limit):
    gate, trust = make(name, alignment, limit), []
    for (p, u, index), (labels, expected) in zip(batches(), PLAIN[name](alignment, limit), strict=True):
        pseudo, keep = gate(torch.tensor(p), torch.tensor(u), torch.tensor(index))
        assert pseudo.tolist() == labels.tolist()
        assert keep.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert keep.is_floating_point() == (name == "softmatch")
        trust += keep.tolist()
    assert min(trust) < 0.9 < max(trust), "the case must have images of both kinds"


def test_softmatchs_labels_are_those_of_the_aligned_prediction_where_wanted():
    gate, changed = make("softmatch", "window", align_labels=True), 0
    for (p, u, index), (labels, expected) in zip(batches(), plain_softmatch("window", math.inf, True), strict=True):
        pseudo, keep = gate(torch.tensor(p), torch.tensor(u), torch.tensor(index))
        assert pseudo.tolist() == labels.tolist()
        assert keep.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)
        changed += int((labels != p.argmax(1)).sum())
    assert changed, "alignment must have changed labels"


def test_thresholds_of_freematch_start_low_where_a_fixed_one_is_closed():
    p = torch.tensor([[0.4, 0.3, 0.3], [0.3, 0.5, 0.2]])
    u, index = torch.zeros(2), torch.arange(2)
    assert make("freematch")(p, u, index)[1].tolist() == [True, True]
    assert make("fixed")(p, u, index)[1].tolist() == [False, False]


def test_what_is_just_as_uncertain_as_the_limit_is_counted_by_the_curriculum_but_not_trusted():
    gate = make("curriculum", max_entropy=0.25)
    _, keep = gate(torch.tensor([[0.9, 0.1, 0.0]] * 2), torch.tensor([0.25, 0.5]), torch.tensor([4, 5]))
    assert keep.tolist() == [False, False]
    assert gate.assigned[[4, 5]].tolist() == [0, K]  # K: unused


@pytest.mark.parametrize("alignment", [False, True, "window"])
@pytest.mark.parametrize("name", sorted(GATES))
def test_a_gate_goes_on_from_its_saved_state(name, alignment):
    straight, resumed = make(name, alignment), make(name, alignment)
    for step, batch in enumerate(batches()):
        p, u, index = (torch.tensor(part) for part in batch)
        if step == STEPS // 2:
            resumed.load_state_dict(straight.state_dict())
        pseudo, keep = straight(p, u, index)
        if step >= STEPS // 2:
            again = resumed(p, u, index)
            assert torch.equal(again[0], pseudo)
            assert torch.equal(again[1], keep)
