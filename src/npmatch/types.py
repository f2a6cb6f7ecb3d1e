"""The types that packages exchange: data set → batch of views → step of an algorithm → prediction.

Shape letters, used everywhere: B labelled batch, U unlabelled batch, K classes, F pooled features,
M head width, T latent samples, Q bank length, N images of a data set, C H W one image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

FOREIGN = -2  # label of an image that is known to belong to no class; −1 means that the class is not known

# Ranges of numeric settings. The upper bounds are far beyond any use and keep later arithmetic from overflowing.
PositiveInt = Annotated[int, Field(gt=0, le=10**9)]  # a number of steps or of images
Size = Annotated[int, Field(gt=0, le=10**6)]  # a number of things held in memory at once
Samples = Annotated[int, Field(gt=0, le=10**4)]  # a number of passes or latent samples for each prediction
PositiveFloat = Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Adjustment = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]  # a strength of logit adjustment
ShareBelowOne = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


@dataclass(frozen=True)
class Views:
    """Number of weak and strong views of each image that an algorithm needs."""

    weak: int = 1  # of unlabelled images
    strong: int = 1
    labeled_weak: int = 0  # of labelled images, besides the one that every algorithm gets
    labeled_strong: int = 0

    @property
    def uses_unlabeled(self) -> bool:
        """Whether the algorithm learns from unlabelled images."""
        return self.weak + self.strong > 0


@dataclass(frozen=True)
class Task:
    """What an algorithm may know about the data: its size and class names, but not which data set it is."""

    class_names: tuple[str, ...]
    num_labeled: int
    num_unlabeled: int
    labels_per_class: tuple[int, ...] = ()  # K; empty where it is not known, as in a saved model

    @property
    def num_classes(self) -> int:
        """Number of classes, K."""
        return len(self.class_names)


class Batch(NamedTuple):
    """The views of one step, augmented and normalised, without the labels of unlabelled images.

    On several ranks the images are the local shard of the batch, while labels and positions cover the whole batch:
    `Model.features` gathers the features of the whole batch, and everything else is computed from them.
    """

    x: Tensor  # B C H W, weak views of the labelled images
    y: Tensor  # B, int64
    weak: tuple[Tensor, ...]  # each U C H W
    strong: tuple[Tensor, ...]  # each U C H W, of the same images as `weak`
    index: Tensor  # type: ignore[assignment]  # U, int64: positions in the unlabelled set, no two alike
    labeled: Tensor  # B, int64: positions in the labelled set
    x_weak: tuple[Tensor, ...] = ()  # each B C H W: further weak views of the labelled images
    x_strong: tuple[Tensor, ...] = ()  # each B C H W: strong views of the labelled images


class Step(NamedTuple):
    """The result of one training step of an algorithm."""

    loss: Tensor  # 0-d, the loss to minimise
    logs: dict[str, Tensor]  # metrics for the log, each 0-d and detached
    pseudo: Tensor | None = None  # U, int64: pseudo-labels, for the loop's diagnostics
    keep: Tensor | None = None  # U, bool: which pseudo-labels were trusted; or their weights in [0, 1]


@dataclass(frozen=True)
class Prediction:
    """Class probabilities of N images and their uncertainty."""

    probs: Tensor  # N K
    entropy: Tensor  # N, nats: entropy of the predictive distribution, averaged over samples
    disagreement: Tensor | None = None  # N, nats: mutual information of class and sample; None without samples
    outlier: Tensor | None = None  # N: probability of belonging to no class; None if the method does not estimate it

    @property
    def label(self) -> Tensor:
        """N, int64: the most probable class."""
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """N: the probability of the most probable class."""
        return self.probs.amax(-1)

    def to(self, device: str | torch.device) -> Prediction:
        """The same prediction on another device."""
        optional = (None if one is None else one.to(device) for one in (self.disagreement, self.outlier))
        return Prediction(self.probs.to(device), self.entropy.to(device), *optional)

    @staticmethod
    def cat(parts: list[Prediction]) -> Prediction:
        """The predictions of consecutive batches, concatenated."""

        def joined(values: list[Tensor | None]) -> Tensor | None:
            known = [value for value in values if value is not None]
            return torch.cat(known) if len(known) == len(values) else None

        return Prediction(
            torch.cat([p.probs for p in parts]),
            torch.cat([p.entropy for p in parts]),
            joined([p.disagreement for p in parts]),
            joined([p.outlier for p in parts]),
        )


Predictor = Callable[[Tensor], Prediction]  # predicts a batch of images, N C H W


@dataclass
class Dataset:
    """Training and test images with their labels, before they are split; a label below 0 means unlabelled."""

    name: str
    class_names: tuple[str, ...]
    train: ImageSet
    test: ImageSet | None = None
    mean: tuple[float, ...] = (0.5,)  # of pixel values in [0, 1], one per channel
    std: tuple[float, ...] = (0.5,)
    foreign_test: ImageSet | None = None  # test images of no class, to measure how well they are told from `test`


@dataclass
class ImageSet:
    """N images with their labels, as far as these are known."""

    images: ImageStore
    labels: Tensor  # N, int64; unlabelled are −1 (class unknown) and −2 (known to belong to no class)
    names: list[str] = field(default_factory=list)  # N file names; empty if the images have none

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)


class ImageStore:
    """N images of one size as uint8, in memory or in files; npmatch.data.images has the implementations."""

    shape: tuple[int, int, int]  # C H W

    def __len__(self) -> int:
        """Number of images."""
        raise NotImplementedError

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        raise NotImplementedError
