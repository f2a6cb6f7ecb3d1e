"""Logit adjustment against scikit-learn's and hand-made shares; off, it leaves a step and its state alone."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from npmatch.algorithms import ALGORITHMS, check_algorithm
from npmatch.algorithms.check import make_algorithm, take_steps
from npmatch.objectives.adjustment import LogitAdjustment

COUNTS = (8, 4, 2, 2)
ADJUSTED = [name for name, cls in ALGORITHMS.items() if hasattr(cls.Config(), "adjustment")]


def test_the_labeled_loss_is_the_cross_entropy_weighted_by_shares():
    draw = torch.Generator().manual_seed(0)
    logits, y = torch.randn(9, 4, generator=draw), torch.randint(4, (9,), generator=draw)
    shares = torch.tensor(COUNTS) / sum(COUNTS)
    odds = logits.exp() * shares  # softmax(z + log π) is π·exp z, normalised
    expected = -(odds / odds.sum(-1, keepdim=True)).gather(1, y[:, None]).log().mean()
    assert F.cross_entropy(LogitAdjustment(COUNTS, 1.0).labeled(logits), y) == pytest.approx(float(expected), rel=1e-5)


def test_even_classes_are_not_adjusted():
    logits = torch.randn(2, 5, 4)  # T U K
    adjust = LogitAdjustment((3, 3, 3, 3), 1.5)
    assert torch.allclose(adjust.labeled(logits).softmax(-1), logits.softmax(-1))


def test_shares_of_pseudo_labels_replace_those_of_the_labels():
    adjust = LogitAdjustment(COUNTS, 2.0, decay=0.5)
    pseudo, logits = torch.tensor([3, 3, 2, 3]), torch.zeros(4, 4)
    first = adjust.unlabeled(logits, pseudo)
    expected = torch.tensor([8, 4, 2, 2]) / 16 * 0.5 + torch.tensor([0, 0, 1, 3]) / 4 * 0.5
    assert torch.allclose(first[0], 2.0 * expected.log(), atol=1e-6)
    for _ in range(40):
        last = adjust.unlabeled(logits, pseudo)
    smallest = 0.01 / 4  # classes that are never predicted
    assert torch.allclose(last[0], 2.0 * torch.tensor([smallest, smallest, 1 / 4, 3 / 4]).log(), atol=1e-4)


def test_off_it_has_no_state_and_returns_the_very_logits():
    adjust = LogitAdjustment(COUNTS, 0.0)
    logits = torch.randn(3, 4)
    assert adjust.labeled(logits) is logits
    assert adjust.unlabeled(logits, torch.zeros(3, dtype=torch.int64)) is logits
    assert adjust.state_dict() == {}


def test_the_methods_that_take_hard_pseudo_labels_have_it():
    assert {"supervised", "fixmatch", "flexmatch", "npmatch", "freematch", "softmatch", "uda"} <= set(ADJUSTED)


@pytest.mark.parametrize("name", ADJUSTED)
def test_adjusted_methods_keep_the_contract(name):
    cls = ALGORITHMS[name]
    trusting = {"confidence": 0.3} if name == "crmatch" else {}  # its third loss has no gradient without trusted images
    check_algorithm(cls, cls.Config(adjustment=1.0, **trusting))


@pytest.mark.parametrize("name", [name for name in ADJUSTED if name != "supervised"])
def test_the_shares_change_the_step_and_are_part_of_its_state(name):
    cls = ALGORITHMS[name]
    algorithm = make_algorithm(cls, cls.Config(adjustment=1.0))
    plain = make_algorithm(cls)
    plain.load_state_dict({k: v for k, v in algorithm.state_dict().items() if not k.startswith("adjust.")})
    with torch.no_grad():
        algorithm.adjust.pseudo_shares.copy_(torch.tensor([0.97, 0.01, 0.01, 0.01]))
    state = copy.deepcopy(algorithm.state_dict())
    assert "adjust.pseudo_shares" in state
    take_steps(algorithm, range(3))
    assert not torch.equal(algorithm.adjust.pseudo_shares, state["adjust.pseudo_shares"])
