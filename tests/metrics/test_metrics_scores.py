"""Scores against scikit-learn, on random predictions and on certain ones."""

import math

import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score

from npmatch.errors import NPMatchError
from npmatch.metrics import scores
from npmatch.types import Prediction


def predicted(probs: torch.Tensor) -> Prediction:
    return Prediction(probs, torch.special.entr(probs).sum(-1))


def random_case(n: int, num_classes: int, dtype: torch.dtype) -> tuple[Prediction, torch.Tensor]:
    draw = torch.Generator().manual_seed(n + num_classes)
    probs = (2 * torch.randn(n, num_classes, generator=draw, dtype=torch.float64)).softmax(-1)
    return predicted(probs.to(dtype)), torch.randint(num_classes, (n,), generator=draw)


@pytest.mark.parametrize("num_classes", [2, 4, 5, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_agree_with_scikit_learn(num_classes, dtype):
    prediction, y = random_case(300, num_classes, dtype)
    result = scores(prediction, y)
    p = prediction.probs.double()
    p = (p / p.sum(-1, keepdim=True)).numpy()
    classes = list(range(num_classes))
    assert result.n == 300
    assert result.error == pytest.approx(100 * (p.argmax(1) != y.numpy()).mean())
    assert result.nll == pytest.approx(log_loss(y, p, labels=classes), rel=1e-5)
    brier = brier_score_loss(y, p, labels=classes, scale_by_half=False)
    assert result.brier == pytest.approx(brier, rel=1e-5)
    if num_classes > 5:
        top5 = top_k_accuracy_score(y, p, k=5, labels=classes)
        assert result.top5_error == pytest.approx(100 * (1 - top5))
    else:
        assert result.top5_error == 0


def test_certain_predictions_stay_finite():
    probs = torch.eye(3)
    right = scores(predicted(probs), torch.tensor([0, 1, 2]))
    assert (right.error, right.uce, right.nll, right.brier) == (0, 0, 0, 0)
    assert right.ece == pytest.approx(0, abs=1e-4)
    wrong = scores(predicted(probs), torch.tensor([1, 2, 0]))
    assert all(math.isfinite(value) for value in wrong.asdict().values())
    assert (wrong.error, wrong.uce, wrong.brier) == (100, 100, 2)
    assert wrong.ece == pytest.approx(100)
    assert wrong.nll == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))


def test_scores_do_not_depend_on_the_order_of_images():
    prediction, y = random_case(100, 6, torch.float64)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    shuffled = Prediction(prediction.probs[order], prediction.entropy[order])
    assert scores(shuffled, y[order]).asdict() == pytest.approx(scores(prediction, y).asdict(), abs=1e-5)


@pytest.mark.parametrize(
    ("y", "complaint"),
    [
        (torch.tensor([0, -1]), "unlabelled"),
        (torch.tensor([0, 3]), "0…2"),
        (torch.tensor([0, 1, 2]), "2 predictions"),
        (torch.tensor([[0], [1]]), "shape"),
        (torch.tensor([0.0, 1.0]), "integers"),
    ],
)
def test_labels_that_do_not_fit_are_refused(y, complaint):
    with pytest.raises(NPMatchError, match=complaint):
        scores(predicted(torch.full((2, 3), 1 / 3)), y)


def test_predictions_that_cannot_be_measured_are_refused():
    nothing = torch.empty(0, dtype=torch.int64)
    with pytest.raises(NPMatchError, match="no image"):
        scores(predicted(torch.empty(0, 3)), nothing)
    with pytest.raises(NPMatchError, match="K ≥ 2"):
        scores(predicted(torch.ones(2, 1)), torch.tensor([0, 0]))
    with pytest.raises(NPMatchError, match="diverged"):
        scores(predicted(torch.full((2, 3), math.nan)), torch.tensor([0, 0]))
