"""Images fetched by worker processes, in order, and no more of them at a time than a few batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapDataset

from npmatch.data.images import ArrayImages
from npmatch.distributed.ranks import Share, local_world_size
from npmatch.errors import NPMatchError
from npmatch.types import ImageStore

T = TypeVar("T")


def default_workers() -> int:
    """Where nobody says how many: one for each core that is this rank's, up to what a GPU's appetite can use."""
    return min(max(_cores() // local_world_size(), 1), 16)


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


Parts = TypeVar("Parts", bound=tuple[Tensor, ...])  # a NamedTuple of tensors

SLOTS = (
    4  # batches under way at a time: one whose copy was begun early, one handed out, two that steps still compute on
)


def copy_ahead(batches: Iterable[Parts], device: torch.device) -> Iterator[Parts]:
    """The same batches on a GPU; the copy of each was begun before the one before it was handed out.

    A batch may be used on the stream that was current when it was handed out, for as long as it is held.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    begun: _Slot[Parts] | None = None
    for batch, slot in zip(batches, cycle([_Slot[Parts](device, stream) for _ in range(SLOTS)]), strict=False):
        slot.begin(batch)
        if begun is not None:
            yield begun.hand_out()
            begun.free()
        begun = slot
    if begun is not None:
        yield begun.hand_out()


class _Slot(Generic[Parts]):
    """A pinned buffer, the device's copy of what lies in it, and the events that say when each may be touched."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self.device, self.stream = device, stream
        self.pinned: Parts | None = None
        self.copy: Parts | None = None
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # Waiting sleeps instead of spinning: the core is wanted for decoding.
        self.used = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def begin(self, batch: Parts) -> None:
        """Starts the copy of a batch, once the step on this slot's last one is done: so the host runs not too far."""
        self.used.synchronize()  # at once where the slot was never used
        if self.pinned is None:
            self.pinned = _rebuilt(batch, [torch.empty_like(part, pin_memory=True) for part in batch])
        for mine, part in zip(self.pinned, batch, strict=True):
            mine.copy_(part)
        with torch.cuda.stream(self.stream):
            self.copy = _rebuilt(batch, [part.to(self.device, non_blocking=True) for part in self.pinned])
            self.copied.record()

    def hand_out(self) -> Parts:
        """The batch on the device, for the current stream."""
        assert self.copy is not None
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self.copied)
        batch, self.copy = self.copy, None
        for part in batch:
            part.record_stream(current)  # made on the other stream: its memory stays until this one is past it
        return batch

    def free(self) -> None:
        """Said when the step on the batch lies on the current stream."""
        self.used.record(torch.cuda.current_stream(self.device))


def _rebuilt(like: Parts, parts: list[Tensor]) -> Parts:
    kind: Any = type(like)
    rebuilt: Parts = kind(*parts)
    return rebuilt
