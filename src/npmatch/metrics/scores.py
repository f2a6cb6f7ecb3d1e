"""The headline numbers of a model on a labelled set."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from npmatch.metrics.calibration_error import expected_calibration_error, uncertainty_calibration_error
from npmatch.metrics.classwise import balanced_accuracy, geometric_accuracy
from npmatch.metrics.matching import matched
from npmatch.types import Prediction


@dataclass(frozen=True)
class Scores:
    """Numbers of which smaller is better, the geometric mean of which larger is better, and the number of images."""

    error: float  # %
    balanced_error: float  # %, mean of the errors of the classes
    geometric_accuracy: float  # %, geometric mean of the accuracies of the classes; 0 if a class is never found
    top5_error: float  # %; 0 where K ≤ 5
    ece: float  # %
    uce: float  # %
    nll: float  # nats
    brier: float  # Σ_k (p_k − y_k)², from 0 to 2
    n: int

    def asdict(self) -> dict[str, float | int]:
        """Name → number, in the order of the fields."""
        return asdict(self)


def scores(prediction: Prediction, y: Tensor) -> Scores:
    """Every headline number of a prediction for N images with labels y (N, integers in 0…K−1)."""
    y = matched(prediction, y)
    probs = prediction.probs
    n, num_classes = probs.shape
    wrong = prediction.label != y
    in_top5 = (probs.topk(min(5, num_classes)).indices == y[:, None]).any(-1)
    # A probability of exactly 0 for the true class would make the NLL of a whole set infinite; it counts as
    # the smallest normal number of its type instead (87 nats in float32).
    p_true = probs.gather(1, y[:, None]).clamp_min(torch.finfo(probs.dtype).tiny).double()
    squares = (probs.double() - one_hot(y, num_classes)).square()
    return Scores(
        error=100 * float(wrong.double().mean()),
        balanced_error=100 * (1 - balanced_accuracy(prediction, y)),
        geometric_accuracy=100 * geometric_accuracy(prediction, y),
        top5_error=100 * float((~in_top5).double().mean()),
        ece=100 * expected_calibration_error(probs, y),
        uce=100 * uncertainty_calibration_error(prediction.entropy, wrong, num_classes),
        nll=float(-p_true.log().mean()),
        brier=float(squares.sum(-1).mean()),
        n=n,
    )
