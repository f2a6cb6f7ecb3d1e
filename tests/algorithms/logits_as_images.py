"""A network that is the identity: images are their own logits, so a step can be computed by hand."""

import math

import torch

from npmatch.types import Batch, Task

Row = list[float]


class Flatten(torch.nn.Module):
    num_features = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


def make_transparent(cls, **options):
    """An algorithm on three classes and six unlabelled images whose head is the identity."""
    algorithm = cls(Flatten(), Task(("a", "b", "c"), num_labeled=2, num_unlabeled=6), cls.Config(**options))
    with torch.no_grad():
        algorithm.model.head.weight.copy_(torch.eye(3))
    return algorithm


def make_batch(
    x: list[Row], y: list[int], weak: list[Row], strong: list[Row], x_strong: list[Row] | None = None
) -> Batch:
    def images(rows: list[Row]) -> torch.Tensor:
        return torch.tensor(rows).view(len(rows), 3, 1, 1)

    return Batch(
        images(x),
        torch.tensor(y),
        (images(weak),),
        (images(strong),),
        torch.arange(len(weak)),
        torch.arange(len(x)),
        x_strong=() if x_strong is None else (images(x_strong),),
    )


def softmax(row: Row) -> Row:
    total = sum(math.exp(z) for z in row)
    return [math.exp(z) / total for z in row]


def mean_cross_entropy(logits: list[Row], y: list[int]) -> float:
    return sum(-math.log(softmax(row)[label]) for row, label in zip(logits, y, strict=True)) / len(y)


X, Y = [[2.0, 0.0, -1.0], [0.0, 0.5, 0.0]], [0, 2]
X_STRONG = [[1.0, 0.3, 0.0], [0.2, 0.0, 0.4]]
WEAK = [[4.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.1, 0.0, 0.2], [0.0, 0.0, 6.0], [1.0, 1.5, 0.0], [0.0, 5.0, 1.0]]
STRONG = [[1.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0], [0.5, 0.0, 0.7], [3.0, 0.0, 0.0], [0.0, -1.0, 0.0]]
