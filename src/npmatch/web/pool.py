"""The pool of unlabelled images, ordered by the model's uncertainty and read page by page."""

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

BATCH = 64  # images; small, because a prediction on the page waits for the batch that is running

Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Page:
    """One page of the pool, and the ranks at which the previous and the next page begin; None where there is none."""

    rows: list[int]  # indices into the pool's arrays
    previous: int | None
    next: int | None  # type: ignore[assignment]


class Pool:
    """Entropy, confidence and label of each unlabelled image, and no pixels: a million images fit in memory."""

    def __init__(self, positions: Tensor) -> None:
        """`positions` are those of the n images in the training set."""
        n = len(positions)
        self.positions: Indices = positions.numpy()
        self.entropy = np.zeros(n, dtype=np.float32)
        self.confidence = np.zeros(n, dtype=np.float32)
        self.label = np.zeros(n, dtype=np.int32)
        self.is_ranked: Mask = np.zeros(n, dtype=np.bool_)
        self.num_read = 0  # images read so far, in order, including those that could not be read
        self.row_of = {position: row for row, position in enumerate(self.positions.tolist())}
        self._order: Indices | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        """Number of images."""
        return len(self.positions)

    @property
    def is_unreadable(self) -> Mask:
        """Which of the images read so far could not be decoded."""
        return (np.arange(len(self)) < self.num_read) & ~self.is_ranked

    def rank(self, images: ImageStore, predict: Predictor, stopped: Callable[[], bool]) -> None:
        """Predicts the images batch by batch until `stopped()`; leaves out files that cannot be read."""
        for start in range(0, len(self), BATCH):
            if stopped():
                return
            rows = np.arange(start, min(start + BATCH, len(self)))
            readable, pixels = self._read(images, rows)
            if len(readable):
                self._store(readable, predict(pixels))
            with self._lock:
                self.num_read += len(rows)
                self._order = None

    def _read(self, images: ImageStore, rows: Indices) -> tuple[Indices, Tensor]:
        """The rows whose images can be read, and their pixels, uint8 n C H W."""
        try:
            return rows, images.take(torch.from_numpy(self.positions[rows]))
        except NPMatchError:  # a broken file must not hide the others in its batch
            readable = [(row, image) for row in rows if (image := self._read_one(images, row)) is not None]
        pixels = torch.cat([image for _, image in readable] or [torch.empty(0)])
        return np.array([row for row, _ in readable], dtype=np.int64), pixels

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
        """Rows of the images ranked so far, the most uncertain first."""
        with self._lock:
            if self._order is None:
                ranked = self.is_ranked.nonzero()[0]
                self._order = ranked[np.argsort(-self.entropy[ranked], kind="stable")]
            return self._order

    def page(self, shown: Mask, start: int, count: int) -> Page:
        """The first `count` images of `shown` from rank `start` on.

        Pages begin at ranks in the whole pool, so labelling an image moves no other to a different page.
        """
        return page_of(self.order(), shown, start, count)


def page_of(order: Indices, shown: Mask, start: int, count: int) -> Page:
    """The first `count` rows of `order` that are `shown`, from rank `start` on."""
    ranks = shown[order].nonzero()[0]
    first = int(np.searchsorted(ranks, start))
    rows = order[ranks[first : first + count]].tolist()
    previous_start = int(ranks[max(0, first - count)]) if first else None
    next_start = int(ranks[first + count]) if first + count < len(ranks) else None
    return Page(rows, previous_start, next_start)
