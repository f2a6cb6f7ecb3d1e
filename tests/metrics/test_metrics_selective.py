"""The risk–coverage curve against plain loops and averages over orders."""

import itertools

import pytest
import torch

from npmatch.metrics import aurc, risk_coverage
from npmatch.types import Prediction


@pytest.fixture
def case() -> tuple[Prediction, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    probs = torch.randn(200, 6, generator=draw).softmax(-1)
    prediction = Prediction(probs, torch.special.entr(probs).sum(-1))
    return prediction, torch.randint(5, (200,), generator=draw)


def test_risk_coverage_agrees_with_a_loop(case):
    prediction, y = case
    curve = risk_coverage(prediction, y)
    wrong = (prediction.label != y).tolist()
    surest_first = sorted(range(200), key=prediction.entropy.tolist().__getitem__)
    risks = [sum(wrong[i] for i in surest_first[:n]) / n for n in range(1, 201)]
    assert curve.risk.tolist() == pytest.approx(risks)
    assert curve.coverage.tolist() == pytest.approx([n / 200 for n in range(1, 201)])
    assert aurc(prediction, y) == pytest.approx(sum(risks) / 200)


def test_images_of_equal_entropy_count_as_the_mean_over_their_orders():
    entropy = torch.tensor([0.0, 0.0, 0.0, 0.5])
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.8, 0.2]])
    y = torch.tensor([1, 0, 0, 1])  # wrong: one of the three tied images, and the uncertain one
    orders = [[*front, 1] for front in itertools.permutations([1, 0, 0])]
    expected = [sum(sum(order[:n]) / n for order in orders) / len(orders) for n in range(1, 5)]
    for order in itertools.permutations(range(4)):
        at = list(order)
        curve = risk_coverage(Prediction(probs[at], entropy[at]), y[at])
        assert curve.risk.tolist() == pytest.approx(expected)


def test_informative_entropy_lowers_the_area_and_misleading_entropy_raises_it(case):
    prediction, y = case
    wrong = (prediction.label != y).float()
    error = float(wrong.mean())
    informative, misleading = Prediction(prediction.probs, wrong), Prediction(prediction.probs, -wrong)
    assert aurc(informative, y) < error < aurc(misleading, y)
    assert aurc(Prediction(prediction.probs, torch.zeros(200)), y) == pytest.approx(error)
