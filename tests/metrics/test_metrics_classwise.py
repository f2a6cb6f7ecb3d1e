"""Class-wise rows and the confusion matrix against scikit-learn and plain loops."""

import math

import pytest
import torch
from scipy.stats import gmean
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, recall_score

from npmatch.errors import NPMatchError
from npmatch.metrics import balanced_accuracy, classwise, confusion, geometric_accuracy
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


def test_means_over_classes_agree_with_scikit_learn_and_scipy(case):
    prediction, y = case
    recall = recall_score(y, prediction.label, labels=list(range(5)), average=None)
    assert balanced_accuracy(prediction, y) == pytest.approx(recall.mean())
    assert geometric_accuracy(prediction, y) == pytest.approx(gmean(recall))
    seen = Prediction(prediction.probs[:, :5], prediction.entropy)  # scikit-learn refuses predictions of unseen classes
    assert balanced_accuracy(seen, y) == pytest.approx(balanced_accuracy_score(y, seen.label))


def test_a_class_that_is_never_found_makes_the_geometric_mean_zero():
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    prediction = Prediction(probs, torch.special.entr(probs).sum(-1))
    assert geometric_accuracy(prediction, torch.tensor([0, 0, 1])) == 0
    assert balanced_accuracy(prediction, torch.tensor([0, 0, 1])) == 0.5
    assert balanced_accuracy(prediction, torch.tensor([0, 0, 0])) == 1, "classes without an image do not count"
