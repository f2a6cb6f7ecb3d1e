"""Images fetched by worker processes, in order, and no more of them at a time than a few batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapDataset

from npmatch.data.images import ArrayImages
from npmatch.ranks import Share, neighbours
from npmatch.types import ImageStore, NPMatchError

T = TypeVar("T")


def default_workers() -> int:
    """Where nobody says how many: one for each core that is this rank's, up to what a GPU's appetite can use."""
    return min(max(_cores() // neighbours(), 1), 16)


def fetch_in_order(fetch: Callable[[int], T], keys: Iterable[int], workers: int) -> Iterator[T]:
    """`fetch(key)` for each key, computed ahead by at most `workers` processes; 0 computes here."""
    workers = min(workers, _cores())
    # Nothing is pinned here: the loader would do it in a thread, which a step that is being captured does not survive.
    loader: DataLoader[Any] = DataLoader(_Fetched(fetch), batch_size=None, sampler=keys, num_workers=workers)
    for item in loader:
        if isinstance(item, NPMatchError):
            raise item
        yield item


def iterate_images(
    store: ImageStore,
    batch_size: int,
    workers: int = 2,
    share: Share = Share(),  # noqa: B008 - frozen
) -> Iterator[Tensor]:
    """All images in order, uint8 n C H W, n = batch_size but for the last; memory does not grow with N.

    Ranks take turns: `share` says whose batches these are.
    """
    starts = range(0, len(store), batch_size)[share.rank :: share.world]
    return _iterate_batches(store, range(len(store)), batch_size, starts, workers)


def iterate_selected(
    store: ImageStore, index: Sequence[int] | Tensor, batch_size: int, workers: int
) -> Iterator[Tensor]:
    """The images at `index`, in that order, uint8 n C H W."""
    return _iterate_batches(store, index, batch_size, range(0, len(index), batch_size), workers)


def _iterate_batches(
    store: ImageStore, index: Sequence[int] | Tensor, batch_size: int, starts: range, workers: int
) -> Iterator[Tensor]:
    if isinstance(store, ArrayImages):  # nothing to decode, so another process would only add a copy
        workers = 0
    return fetch_in_order(_TakeBatch(store, index, batch_size), starts, min(workers, len(starts)))


def _cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _TakeBatch:
    """A class and not a closure, because workers may be started by pickling."""

    def __init__(self, store: ImageStore, index: Sequence[int] | Tensor, batch_size: int) -> None:
        self.store, self.index, self.batch_size = store, index, batch_size

    def __call__(self, start: int) -> Tensor:
        return self.store.take(torch.as_tensor(self.index[start : start + self.batch_size]))


class _Fetched(MapDataset[T | NPMatchError], Generic[T]):
    """Hands a user's error over as an item, which the loader would otherwise wrap in a worker's traceback."""

    def __init__(self, fetch: Callable[[int], T]) -> None:
        self.fetch = fetch

    def __getitem__(self, key: int) -> T | NPMatchError:
        try:
            return self.fetch(key)
        except NPMatchError as error:
            return NPMatchError(str(error))
