"""Rows of an array as uint8 images, and the network and augmentation that suit them.

Images are padded to squares. A feature vector becomes an image of one pixel with one channel per feature, each scaled
to its range in training; a small network of dense layers reads it.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.augment import Policy
from npmatch.augment.views import FunctionView, Identity

Array = np.ndarray[Any, Any]
DARKEST = 32  # of 255: images of uint8 that have no brighter pixel are taken for a mistake
DARK = (
    "uint8 images whose largest value is {}, where 255 is white, so that they are nearly black; scale them to 0–255, "
    "or pass floats in [0, 1]"
)
SMALLEST_SQUARE = 8  # pixels: flat rows shorter than 8 × 8 are treated as features


class Rows(Protocol):
    """The kind of the rows of an array: images or features."""

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """H W C, or None for features."""
        ...

    def pixels(self, rows: Array) -> Tensor:
        """Rows n D → uint8 images n C S S."""
        ...

    def settings(self) -> dict[str, Any]:
        """Configuration keys for a network and augmentation of their own."""
        ...


def flatten(X: Any, image_shape: tuple[int, ...] | None) -> tuple[Any, tuple[int, int, int] | None]:
    """Images n H W [C] as rows n H·W·C with their shape; other arrays unchanged, with the shape in `image_shape`."""
    expected = None if image_shape is None else full_shape(tuple(image_shape))
    if (X if hasattr(X, "ndim") else np.asarray(X)).ndim not in (3, 4):
        return X, expected
    images = np.asarray(X)
    shape = full_shape(images.shape[1:])
    if expected is not None and expected != shape:
        raise ValueError(f"X holds images of shape {shape} (h, w, c), but {expected} is expected")
    return images.reshape(len(images), math.prod(shape)), shape


def full_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(h, w) or (h, w, c) as (h, w, c)."""
    if len(shape) not in (2, 3) or min(shape) < 1 or (len(shape) == 3 and shape[2] not in (1, 3)):
        raise ValueError(f"image shape {shape}: (h, w) or (h, w, c) is expected, with 1 or 3 channels c at the end")
    return (*shape, 1) if len(shape) == 2 else shape  # type: ignore[return-value]


def detect_rows(rows: Array, shape: tuple[int, int, int] | None) -> Rows:
    """The kind of training rows n D: images of `shape` H W C if given, otherwise square grey images or features."""
    side = math.isqrt(rows.shape[1])
    if shape is None and side * side == rows.shape[1] and side >= SMALLEST_SQUARE and holds_pixels(rows):
        shape = (side, side, 1)
    if shape is None:
        return FeatureRows.of(rows)
    if rows.shape[1] != math.prod(shape):
        raise ValueError(f"image_shape={shape}: has {math.prod(shape)} pixels, but a row has {rows.shape[1]}")
    if _brightest(rows) == 1:
        raise ValueError(f"X holds {DARK.format(1)}")
    return ImageRows(shape)


def _brightest(rows: Array) -> int | None:
    """The largest level of uint8 pixels; None for other arrays, and without a pixel."""
    return int(rows.max()) if rows.dtype == np.uint8 and rows.size else None


def holds_pixels(rows: Array) -> bool:
    """Whether all values can be pixels: uint8, or floats in [0, 1]."""
    if rows.dtype == np.uint8:
        return True
    return rows.dtype.kind == "f" and (rows.size == 0 or bool(rows.min() >= 0 and rows.max() <= 1))


@dataclass(frozen=True)
class ImageRows:
    """Rows that are images, flattened in the order H W C."""

    image_shape: tuple[int, int, int]  # H W C

    def pixels(self, rows: Array) -> Tensor:
        """Rows n H·W·C → uint8 images n C S S; the shorter side is padded with the pixels at its borders."""
        if not holds_pixels(rows):
            raise ValueError("images must be uint8, or floats in [0, 1]: divide by the largest value a pixel can have")
        if (level := _brightest(rows)) is not None and 0 < level < DARKEST:
            warnings.warn(f"X holds {DARK.format(level)}", stacklevel=3)
        images = rows.reshape(len(rows), *self.image_shape)
        if images.dtype != np.uint8:
            images = np.rint(images * 255).astype(np.uint8)
        height, width, _ = self.image_shape
        side = max(height, width)
        top, left = (side - height) // 2, (side - width) // 2
        margins = ((0, 0), (top, side - height - top), (left, side - width - left), (0, 0))
        return torch.from_numpy(np.ascontiguousarray(np.pad(images, margins, mode="edge").transpose(0, 3, 1, 2)))

    def settings(self) -> dict[str, Any]:
        """Empty: images get the usual network and augmentation."""
        return {}


@dataclass(frozen=True)
class FeatureRows:
    """Rows that are D features, each with its range in training."""

    low: Array  # D
    high: Array  # D
    image_shape: ClassVar[None] = None

    @staticmethod
    def of(rows: Array) -> FeatureRows:
        """Feature rows with the ranges of the training rows n D."""
        return FeatureRows(rows.min(0).astype(np.float64), rows.max(0).astype(np.float64))

    def pixels(self, rows: Array) -> Tensor:
        """Rows n D → uint8 images n D 1 1: 0 and 255 are the ends of a feature's range, to which values are clipped."""
        # Halves, because the difference of two large numbers may overflow.
        low, half_span = self.low / 2, self.high / 2 - self.low / 2
        share = ((rows / 2 - low) / np.where(half_span > 0, half_span, 0.5)).clip(0, 1)
        return torch.from_numpy(np.rint(share * 255).astype(np.uint8))[:, :, None, None]

    def settings(self) -> dict[str, Any]:
        """A network of dense layers, and an augmentation that hides features."""
        return {"augment.policy": f"{__name__}:hiding_features", "backbone.name": f"{__name__}:DenseNetwork"}


class DenseNetwork(nn.Module):
    """Two dense layers for feature vectors N D 1 1."""

    num_features = 64

    def __init__(self, in_channels: int) -> None:
        """`in_channels` is D. Layer norm, because few steps are not enough for the running statistics of batch norm."""
        super().__init__()
        self.first, self.norm = nn.Linear(in_channels, self.num_features), nn.LayerNorm(self.num_features)
        self.second = nn.Linear(self.num_features, self.num_features)

    def forward(self, x: Tensor) -> Tensor:
        """N D 1 1 → N F."""
        out: Tensor = F.leaky_relu(self.second(F.leaky_relu(self.norm(self.first(x.flatten(1))), 0.1)), 0.1)
        return out


def hiding_features(image_shape: tuple[int, int, int], mean: tuple[float, ...]) -> Policy:
    """A policy: weak views are the vectors themselves, strong views replace a fifth of the features by the mean."""
    fill = torch.tensor(mean).mul(255).round().to(torch.uint8).view(-1, 1, 1)

    def hide(vectors: Tensor) -> Tensor:
        hidden = torch.rand(vectors.shape, device=vectors.device) < 0.2
        return torch.where(hidden, fill.to(vectors.device), vectors)

    return Policy(Identity(), FunctionView(hide))
