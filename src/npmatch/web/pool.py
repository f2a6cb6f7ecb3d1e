"""The unlabelled images in the order of the model's uncertainty, a page at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from npmatch.errors import NPMatchError
from npmatch.types import ImageStore, Prediction, Predictor

BATCH = 64  # images; small, so that someone who waits for a prediction does not wait for long

Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Page:
    """Some images of the pool, and where the neighbouring pages begin; no rank where there is none."""

    rows: list[int]  # of the pool's arrays
    previous: int | None
    next: int | None  # type: ignore[assignment]


class Pool:
    """What the model says of each unlabelled image: three numbers, so that a million of them fit in memory."""

    def __init__(self, positions: Tensor) -> None:
        """`positions`: of the images in the training set, n."""
        n = len(positions)
        self.positions: Indices = positions.numpy()
        self.entropy = np.zeros(n, dtype=np.float32)
        self.confidence = np.zeros(n, dtype=np.float32)
        self.label = np.zeros(n, dtype=np.int32)
        self.is_ranked: Mask = np.zeros(n, dtype=np.bool_)
        self.done = 0  # images looked at, the unreadable included
        self.row_of = {position: row for row, position in enumerate(self.positions.tolist())}
        self._order: Indices | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        """n."""
        return len(self.positions)

    @property
    def is_unreadable(self) -> Mask:
        """Which images could not be read, so far."""
        return (np.arange(len(self)) < self.done) & ~self.is_ranked

    def rank(self, images: ImageStore, predict: Predictor, stopped: Callable[[], bool]) -> None:
        """Asks the model for each image, batch after batch; files that cannot be read are left out."""
        for start in range(0, len(self), BATCH):
            if stopped():
                return
            rows = np.arange(start, min(start + BATCH, len(self)))
            readable, pixels = self._read(images, rows)
            if len(readable):
                self._store(readable, predict(pixels))
            with self._lock:
                self.done += len(rows)
                self._order = None

    def _read(self, images: ImageStore, rows: Indices) -> tuple[Indices, Tensor]:
        try:
            return rows, images.take(torch.from_numpy(self.positions[rows]))
        except NPMatchError:  # one broken file must not hide its neighbours
            kept = [(row, image) for row in rows if (image := self._read_one(images, row)) is not None]
        return np.array([row for row, _ in kept], dtype=np.int64), torch.cat(
            [image for _, image in kept] or [torch.empty(0)]
        )

    def _read_one(self, images: ImageStore, row: int) -> Tensor | None:
        try:
            return images.take(torch.from_numpy(self.positions[row : row + 1]))
        except NPMatchError:
            return None

    def _store(self, rows: Indices, prediction: Prediction) -> None:
        self.entropy[rows] = prediction.entropy.numpy()
        self.confidence[rows] = prediction.confidence.numpy()
        self.label[rows] = prediction.label.numpy()
        self.is_ranked[rows] = True

    def order(self) -> Indices:
        """Rows of the images ranked so far, the least sure first."""
        with self._lock:
            if self._order is None:
                ranked = self.is_ranked.nonzero()[0]
                self._order = ranked[np.argsort(-self.entropy[ranked], kind="stable")]
            return self._order

    def page(self, keep: Mask, start: int, count: int) -> Page:
        """`count` images from rank `start` on, of those to keep: labelling some moves no other to another page."""
        order = self.order()
        ranks = keep[order].nonzero()[0]
        first = int(np.searchsorted(ranks, start))
        shown = ranks[first : first + count]
        before = int(ranks[max(0, first - count)]) if first else None
        after = int(ranks[first + count]) if first + count < len(ranks) else None
        return Page(order[shown].tolist(), before, after)
