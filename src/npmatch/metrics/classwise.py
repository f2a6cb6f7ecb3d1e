"""Class by class: accuracy and uncertainty of each class, means over classes, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from npmatch.errors import NPMatchError
from npmatch.metrics.matching import matched
from npmatch.types import Prediction


@dataclass(frozen=True)
class ClassRow:
    """One class of the labelled set; accuracy and uncertainty are NaN where n = 0."""

    name: str
    n: int
    accuracy: float  # a fraction
    uncertainty: float  # nats, mean entropy of the images whose true class this is

    def asdict(self) -> dict[str, str | int | float | None]:
        """The row for JSON, with the error in % as in Scores; None where the class has no image."""
        error, uncertainty = (100 * (1 - self.accuracy), self.uncertainty) if self.n else (None, None)
        return {"name": self.name, "n": self.n, "error": error, "uncertainty": uncertainty}


def classwise(prediction: Prediction, y: Tensor, class_names: Sequence[str]) -> list[ClassRow]:
    """One row per class, in the order of `class_names`."""
    y = matched(prediction, y)
    num_classes = prediction.probs.shape[1]
    if len(class_names) != num_classes:
        raise NPMatchError(f"{num_classes} classes need {num_classes} names, not {len(class_names)}")
    count = torch.bincount(y, minlength=num_classes)
    right = torch.bincount(y, weights=(prediction.label == y).double(), minlength=num_classes)
    entropy = torch.bincount(y, weights=prediction.entropy.double(), minlength=num_classes)
    columns = zip(class_names, count.tolist(), (right / count).tolist(), (entropy / count).tolist(), strict=True)
    return [ClassRow(name, n, accuracy, uncertainty) for name, n, accuracy, uncertainty in columns]


def balanced_accuracy(prediction: Prediction, y: Tensor) -> float:
    """Mean of the accuracies of the classes that occur in y, a fraction: every class counts the same."""
    return float(_accuracies(prediction, y).mean())


def geometric_accuracy(prediction: Prediction, y: Tensor) -> float:
    """Geometric mean of the accuracies of the classes that occur in y, a fraction; 0 if a class is never found."""
    return float(_accuracies(prediction, y).log().mean().exp())


def _accuracies(prediction: Prediction, y: Tensor) -> Tensor:
    """The accuracy of each class that occurs in y, float64."""
    table = confusion(prediction, y).double()
    count = table.sum(1)
    return table.diagonal()[count > 0] / count[count > 0]


def confusion(prediction: Prediction, y: Tensor) -> Tensor:
    """K × K int64: row = true class, column = predicted class."""
    y = matched(prediction, y)
    num_classes = prediction.probs.shape[1]
    cell = y * num_classes + prediction.label
    return torch.bincount(cell, minlength=num_classes**2).reshape(num_classes, num_classes)
