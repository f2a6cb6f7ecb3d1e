"""Arrays as data: rows of numbers become uint8 images, and say how they are best trained on.

An image stays an image, made square. A vector of features becomes an image of one pixel with as many channels as it
has features, each scaled to its range in training; a small network of dense layers reads it.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms import Algorithm, find_algorithm
from npmatch.augment import Policy
from npmatch.augment.views import FunctionView, Identity
from npmatch.config.choices import DataFacts, make_choices
from npmatch.config.recipes import OWN_IMAGES
from npmatch.config.tree import Config, make_config
from npmatch.data import ArrayImages, make_split
from npmatch.errors import InterruptedRunError, NPMatchError
from npmatch.predict.saved import ModelSpec
from npmatch.runs.build import build
from npmatch.runs.resume_from import load_state
from npmatch.training import Display, TrainingConfig
from npmatch.training.nonfinite import NotFiniteError
from npmatch.types import Dataset, ImageSet

Array = np.ndarray[Any, Any]
SMALLEST_SQUARE = 8  # pixels: a flat row shorter than 8 × 8 is taken for features


class Rows(Protocol):
    """What rows of numbers are."""

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """H W C, or nothing where they are no images."""
        ...

    def pixels(self, rows: Array) -> Tensor:
        """n D → uint8 n C S S."""
        ...

    def settings(self) -> dict[str, Any]:
        """Network and augmentation of their own, as keys of a configuration; none for images."""
        ...


def flatten(X: Any, image_shape: tuple[int, ...] | None) -> tuple[Any, tuple[int, int, int] | None]:
    """Images n H W [C] as rows n H·W·C with their shape; anything else as it is, with the shape it is said to have."""
    said = None if image_shape is None else full_shape(tuple(image_shape))
    if (X if hasattr(X, "ndim") else np.asarray(X)).ndim not in (3, 4):
        return X, said
    images = np.asarray(X)
    found = full_shape(images.shape[1:])
    if said is not None and said != found:
        raise ValueError(f"X holds images of shape {found} (h, w, c), but {said} is expected")
    return images.reshape(len(images), math.prod(found)), found


def full_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(h, w) or (h, w, c) as (h, w, c)."""
    if len(shape) not in (2, 3) or min(shape) < 1 or (len(shape) == 3 and shape[2] not in (1, 3)):
        raise ValueError(f"image shape {shape}: (h, w) or (h, w, c) is expected, with 1 or 3 channels c at the end")
    return (*shape, 1) if len(shape) == 2 else shape  # type: ignore[return-value]


def understand(rows: Array, shape: tuple[int, int, int] | None) -> Rows:
    """What training rows n D are: images of `shape` H W C, square grey images, or features."""
    if shape is not None:
        if rows.shape[1] != math.prod(shape):
            raise ValueError(f"image_shape={shape}: makes {math.prod(shape)} numbers, but a row has {rows.shape[1]}")
        return ImageRows(shape)
    side = math.isqrt(rows.shape[1])
    if side * side == rows.shape[1] and side >= SMALLEST_SQUARE and holds_pixels(rows):
        return ImageRows((side, side, 1))
    return FeatureRows.of(rows)


def holds_pixels(rows: Array) -> bool:
    """Whether the numbers can be pixels: uint8, or floats in [0, 1]."""
    if rows.dtype == np.uint8:
        return True
    return rows.dtype.kind == "f" and (rows.size == 0 or bool(rows.min() >= 0 and rows.max() <= 1))


@dataclass(frozen=True)
class ImageRows:
    """Images, flattened in the order H W C."""

    image_shape: tuple[int, int, int]  # H W C

    def pixels(self, rows: Array) -> Tensor:
        """n H·W·C → uint8 n C S S: the shorter side is filled up with the pixels of its borders."""
        if not holds_pixels(rows):
            raise ValueError("images must be uint8, or floats in [0, 1]: divide by the largest value a pixel can have")
        images = rows.reshape(len(rows), *self.image_shape)
        if images.dtype != np.uint8:
            images = np.rint(images * 255).astype(np.uint8)
        height, width, _ = self.image_shape
        side = max(height, width)
        top, left = (side - height) // 2, (side - width) // 2
        margins = ((0, 0), (top, side - height - top), (left, side - width - left), (0, 0))
        return torch.from_numpy(np.ascontiguousarray(np.pad(images, margins, mode="edge").transpose(0, 3, 1, 2)))

    def settings(self) -> dict[str, Any]:
        """None of their own: images get the defaults of images."""
        return {}


@dataclass(frozen=True)
class FeatureRows:
    """Features, each with the range it had in training."""

    low: Array  # D
    high: Array  # D
    image_shape: ClassVar[None] = None

    @staticmethod
    def of(rows: Array) -> FeatureRows:
        """The ranges of training rows n D."""
        return FeatureRows(rows.min(0).astype(np.float64), rows.max(0).astype(np.float64))

    def pixels(self, rows: Array) -> Tensor:
        """n D → uint8 n D 1 1: 0 and 255 are the ends of a feature's range, and what lies outside goes there."""
        span = np.where(self.high > self.low, self.high - self.low, 1.0)
        share = ((rows - self.low) / span).clip(0, 1)
        return torch.from_numpy(np.rint(share * 255).astype(np.uint8))[:, :, None, None]

    def settings(self) -> dict[str, Any]:
        """Dense layers; a strong view hides features."""
        return {"augment.policy": f"{__name__}:hiding_features", "backbone.name": f"{__name__}:DenseNetwork"}


class DenseNetwork(nn.Module):
    """Two dense layers for vectors that come as N D 1 1."""

    num_features = 64

    def __init__(self, in_channels: int) -> None:
        """`in_channels` is D. Layer norm: it has no statistics, which so few steps could not settle."""
        super().__init__()
        self.first, self.norm = nn.Linear(in_channels, self.num_features), nn.LayerNorm(self.num_features)
        self.second = nn.Linear(self.num_features, self.num_features)

    def forward(self, x: Tensor) -> Tensor:
        """N D 1 1 → N F."""
        out: Tensor = F.leaky_relu(self.second(F.leaky_relu(self.norm(self.first(x.flatten(1))), 0.1)), 0.1)
        return out


def hiding_features(image_shape: tuple[int, int, int], mean: tuple[float, ...]) -> Policy:
    """Weak views are the vectors themselves; in strong ones a fifth of the features has its mean."""
    middle = torch.tensor(mean).mul(255).round().to(torch.uint8).view(-1, 1, 1)

    def hide(vectors: Tensor) -> Tensor:
        hidden = torch.rand(vectors.shape, device=vectors.device) < 0.2
        return torch.where(hidden, middle.to(vectors.device), vectors)

    return Policy(Identity(), FunctionView(hide))


class Trained(NamedTuple):
    """What training leaves: the algorithm with its averaged weights, and what prediction needs to know beside it."""

    algorithm: Algorithm
    spec: ModelSpec


def train_on_arrays(
    rows: Rows,
    pixels: Tensor,  # uint8 n C S S
    labels: Tensor,  # n, −1 where unknown
    *,
    class_names: tuple[str, ...],
    algorithm: str,
    iterations: int,
    seed: int,
    device: torch.device,
    before: Algorithm | None = None,
) -> Trained:
    """A trained algorithm, by the road of `runs.fit` without files; with `before`, it goes on from that one's state."""
    dataset = make_dataset(pixels, labels, class_names)
    config = choose_config(algorithm, iterations, seed, rows, dataset, device)
    split = make_split(dataset, None, seed)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        trainer, evaluator = build(config, dataset, split, device, Display("", iterations, quiet=True))
        if before is not None:
            load_state(trainer.algorithm, before.state_dict(), origin="warm_start")
            trainer.update.ema.load_state_dict(trainer.update.ema.live)
        try:
            trainer.run()
        except NotFiniteError as error:
            raise NPMatchError(f"{error.what}: these images cannot be learnt with the default settings") from error
        except InterruptedRunError as error:  # nothing was saved that one could go on from
            raise KeyboardInterrupt from error
    with trainer.update.ema.applied():
        trained = deepcopy(trainer.algorithm)
    trained.model.autocast = None  # prediction is in float32, as that of a saved model
    return Trained(trained.eval(), evaluator.spec)


def make_dataset(pixels: Tensor, labels: Tensor, class_names: tuple[str, ...]) -> Dataset:
    """Images in memory as a data set, with the mean and the deviation of their own pixels."""
    scaled = pixels.float().div(255)
    mean, std = scaled.mean((0, 2, 3)), scaled.std((0, 2, 3), correction=0).clamp(min=1 / 255)
    images = ImageSet(ArrayImages(pixels), labels)
    return Dataset("arrays", class_names, images, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def choose_config(
    algorithm: str, iterations: int, seed: int, rows: Rows, dataset: Dataset, device: torch.device
) -> Config:
    """The defaults that a folder of the same images would get, with the few settings the estimator has."""
    labels = dataset.train.labels
    channels, side, _ = dataset.train.images.shape
    facts = DataFacts(
        class_names=dataset.class_names,
        labels=torch.bincount(labels[labels >= 0], minlength=len(dataset.class_names)).tolist(),
        images=len(labels),
        side=side,
        is_grey=channels == 1,
        from_files=False,
    )
    given = {
        **find_algorithm(algorithm).settings,
        **rows.settings(),
        "algorithm.name": algorithm,
        "seed": seed,
        "training.iterations": iterations,
        "training.max_bad_steps": min(TrainingConfig.max_bad_steps, iterations),
    }
    choices = {choice.key: choice.value for choice in make_choices(facts, given, device.type == "cuda")}
    return make_config({**OWN_IMAGES, "data.source": "arrays", "data.image_size": None, **choices}, given)
