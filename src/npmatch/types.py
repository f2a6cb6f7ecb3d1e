"""What flows between the rooms of the house: data → views → algorithm → prediction.

Shape letters, used everywhere: B labelled batch, U unlabelled batch, K classes, F pooled features,
M head width, T latent samples, Q bank length, N images of a set, C H W an image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

FOREIGN = -2  # the label of an image known to be of no class; −1 is that of one not known

# The numbers that settings take. The largest are far beyond use, and small enough for the arithmetic that follows.
PositiveInt = Annotated[int, Field(gt=0, le=10**9)]  # of steps, of images
Size = Annotated[int, Field(gt=0, le=10**6)]  # of what is held in memory at once
PositiveFloat = Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


@dataclass(frozen=True)
class Views:
    """How many views of each unlabelled image an algorithm asks of the streams."""

    weak: int = 1
    strong: int = 1


@dataclass(frozen=True)
class Task:
    """What an algorithm may know of the data: sizes and names, never a data set's own name."""

    class_names: tuple[str, ...]
    num_labeled: int
    num_unlabeled: int

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)


class Batch(NamedTuple):
    """One step's views, augmented and normalised. It holds no label of an unlabelled image.

    On several ranks the images are this rank's share of the batch, labels and positions those of all of it: features
    come out of `Model.features` for the whole batch, and everything else follows from them.
    """

    x: Tensor  # B C H W, weak views of labelled images
    y: Tensor  # B, int64
    weak: tuple[Tensor, ...]  # each U C H W
    strong: tuple[Tensor, ...]  # each U C H W, of the same images as `weak`
    index: Tensor  # type: ignore[assignment]  # U, int64: positions in the unlabelled set, no two alike


class Step(NamedTuple):
    """What one step of an algorithm returns."""

    loss: Tensor  # 0-d, the quantity to minimise
    logs: dict[str, Tensor]  # 0-d, detached
    pseudo: Tensor | None = None  # U, int64: pseudo-labels, for the loop's diagnostics
    keep: Tensor | None = None  # U, bool: which of them were trusted


@dataclass(frozen=True)
class Prediction:
    """What a model says of N images, and how sure it is."""

    probs: Tensor  # N K
    entropy: Tensor  # N, nats: uncertainty of the averaged prediction
    disagreement: Tensor | None = None  # N, nats: mutual information between samples, if there are any

    @property
    def label(self) -> Tensor:
        """N, int64: the likeliest class."""
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """N: the probability of the likeliest class."""
        return self.probs.amax(-1)

    def to(self, device: str | torch.device) -> Prediction:
        """The same prediction on another device."""
        moved = None if self.disagreement is None else self.disagreement.to(device)
        return Prediction(self.probs.to(device), self.entropy.to(device), moved)

    @staticmethod
    def cat(parts: list[Prediction]) -> Prediction:
        """Predictions of consecutive batches as one."""
        disagreements = [p.disagreement for p in parts if p.disagreement is not None]
        return Prediction(
            torch.cat([p.probs for p in parts]),
            torch.cat([p.entropy for p in parts]),
            torch.cat(disagreements) if len(disagreements) == len(parts) else None,
        )


Predictor = Callable[[Tensor], Prediction]  # a model, to those who only ask it


@dataclass
class Dataset:
    """Images with labels (below 0 = unlabelled), before anything is split; see data/images.py for the stores."""

    name: str
    class_names: tuple[str, ...]
    train: ImageSet
    test: ImageSet | None = None
    mean: tuple[float, ...] = (0.5,)  # of pixels in [0, 1], one per channel
    std: tuple[float, ...] = (0.5,)


@dataclass
class ImageSet:
    """N images and what is known of their labels."""

    images: ImageStore
    labels: Tensor  # N, int64, −1 where unknown, −2 where known to be of no class: unlabelled, both
    names: list[str] = field(default_factory=list)  # N file names, or empty where images have none

    def __len__(self) -> int:
        """N."""
        return len(self.labels)


class ImageStore:
    """N images of one size, as uint8, in memory or in files."""

    shape: tuple[int, int, int]  # C H W

    def __len__(self) -> int:
        """N."""
        raise NotImplementedError

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        raise NotImplementedError
