"""Class-wise rows, the confusion matrix and the risk–coverage curve against scikit-learn and plain loops."""

import itertools
import math

import pytest
import torch
from sklearn.metrics import confusion_matrix, recall_score

from npmatch.errors import NPMatchError
from npmatch.metrics import aurc, classwise, confusion, risk_coverage
from npmatch.types import Prediction


@pytest.fixture
def case() -> tuple[Prediction, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    probs = torch.randn(200, 6, generator=draw).softmax(-1)
    prediction = Prediction(probs, torch.special.entr(probs).sum(-1))
    return prediction, torch.randint(5, (200,), generator=draw)  # class 5 never occurs


def test_confusion_agrees_with_scikit_learn(case):
    prediction, y = case
    table = confusion(prediction, y)
    assert table.dtype == torch.int64
    assert table.tolist() == confusion_matrix(y, prediction.label, labels=list(range(6))).tolist()


def test_classwise_accuracy_is_recall_and_uncertainty_the_mean_entropy(case):
    prediction, y = case
    rows = classwise(prediction, y, list("abcdef"))
    recall = recall_score(y, prediction.label, labels=list(range(5)), average=None)
    assert [row.name for row in rows] == list("abcdef")
    assert [row.accuracy for row in rows[:5]] == pytest.approx(recall.tolist())
    for k, row in enumerate(rows[:5]):
        members = [h for h, label in zip(prediction.entropy.tolist(), y.tolist(), strict=True) if label == k]
        assert row.n == len(members)
        assert row.uncertainty == pytest.approx(sum(members) / len(members))
    assert rows[5].n == 0
    assert math.isnan(rows[5].accuracy)
    assert rows[5].asdict() == {"name": "f", "n": 0, "error": None, "uncertainty": None}  # JSON has no NaN
    with pytest.raises(NPMatchError, match="6 names"):
        classwise(prediction, y, ["a", "b"])


def test_risk_coverage_agrees_with_a_loop(case):
    prediction, y = case
    curve = risk_coverage(prediction, y)
    wrong = (prediction.label != y).tolist()
    surest_first = sorted(range(200), key=prediction.entropy.tolist().__getitem__)
    risks = [sum(wrong[i] for i in surest_first[:n]) / n for n in range(1, 201)]
    assert curve.risk.tolist() == pytest.approx(risks)
    assert curve.coverage.tolist() == pytest.approx([n / 200 for n in range(1, 201)])
    assert aurc(prediction, y) == pytest.approx(sum(risks) / 200)


def test_equally_sure_images_count_as_the_mean_over_their_orders():
    entropy = torch.tensor([0.0, 0.0, 0.0, 0.5])
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.8, 0.2]])
    y = torch.tensor([1, 0, 0, 1])  # one of the three tied images is wrong, and the unsure one
    orders = [[*front, 1] for front in itertools.permutations([1, 0, 0])]
    expected = [sum(sum(order[:n]) / n for order in orders) / len(orders) for n in range(1, 5)]
    for order in itertools.permutations(range(4)):
        at = list(order)
        curve = risk_coverage(Prediction(probs[at], entropy[at]), y[at])
        assert curve.risk.tolist() == pytest.approx(expected)


def test_uncertainty_that_knows_its_errors_beats_one_that_does_not(case):
    prediction, y = case
    wrong = (prediction.label != y).float()
    error = float(wrong.mean())
    knowing, misled = Prediction(prediction.probs, wrong), Prediction(prediction.probs, -wrong)
    assert aurc(knowing, y) < error < aurc(misled, y)
    assert aurc(Prediction(prediction.probs, torch.zeros(200)), y) == pytest.approx(error)
