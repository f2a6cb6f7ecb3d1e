"""Images loaded by worker processes: in order, a few batches ahead, and copied to the GPU ahead of their use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapDataset

from npmatch.data.images import is_in_memory
from npmatch.distributed.ranks import Share, local_world_size
from npmatch.errors import NPMatchError
from npmatch.types import ImageStore

T = TypeVar("T")
PREFETCHED = 2  # items that each worker process computes ahead


def default_workers() -> int:
    """Default number of worker processes: the cores of this machine per local rank, at most 16."""
    return min(max(_cores() // local_world_size(), 1), 16)


def workers_or_default(workers: int | None) -> int:
    """The number of worker processes that was given, or the default."""
    return default_workers() if workers is None else workers


def fetch_in_order(fetch: Callable[[int], T], keys: Sequence[int], workers: int) -> Iterator[T]:
    """`fetch(key)` for each key in order, computed ahead by at most `workers` processes; with 0, in this process.

    A single key is fetched in this process: there is nothing to compute ahead, and starting a process takes longer.
    """
    workers = min(workers, _cores(), len(keys)) if len(keys) > 1 else 0
    # No pin_memory: the loader pins in a thread, which breaks the capture of a CUDA graph at the same time.
    loader: DataLoader[Any] = DataLoader(
        _FetchDataset(fetch),
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        prefetch_factor=PREFETCHED if workers else None,
        collate_fn=_unchanged,  # by default small arrays would become tensors, each in shared memory of its own
    )
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
    """All images in order in batches of uint8, n C H W; memory does not grow with the number of images.

    n is `batch_size`, except in the last batch. Of several ranks, each takes every world-size-th batch: `share` says
    which ones.
    """
    check_batch_size(batch_size)
    starts = range(0, len(store), batch_size)[share.rank :: share.world]
    return _iterate_batches(store, range(len(store)), batch_size, starts, workers)


def check_batch_size(size: int) -> None:
    """Refuses batches of no images."""
    if size < 1:
        raise NPMatchError(f"batch_size={size}: give a number of images, 1 or more")


def iterate_selected(
    store: ImageStore, index: Sequence[int] | Tensor, batch_size: int, workers: int
) -> Iterator[Tensor]:
    """The images at `index`, in that order, in batches of uint8, n C H W."""
    return _iterate_batches(store, index, batch_size, range(0, len(index), batch_size), workers)


def _iterate_batches(
    store: ImageStore, index: Sequence[int] | Tensor, batch_size: int, starts: range, workers: int
) -> Iterator[Tensor]:
    if is_in_memory(store):  # nothing is decoded, so another process would only add a copy
        workers = 0
    return fetch_in_order(_TakeBatch(store, index, batch_size), starts, workers)


def _unchanged(item: T) -> T:
    return item


def _cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _TakeBatch:
    """Takes the batch that begins at `start`; a class because workers may get it by pickling, unlike a closure."""

    def __init__(self, store: ImageStore, index: Sequence[int] | Tensor, batch_size: int) -> None:
        self.store, self.index, self.batch_size = store, index, batch_size

    def __call__(self, start: int) -> Tensor:
        return self.store.take(torch.as_tensor(self.index[start : start + self.batch_size]))


class _FetchDataset(MapDataset[T | NPMatchError], Generic[T]):
    """`fetch` as a map-style data set; returns an NPMatchError as an item, as raising it adds a worker's traceback."""

    def __init__(self, fetch: Callable[[int], T]) -> None:
        self.fetch = fetch

    def __getitem__(self, key: int) -> T | NPMatchError:
        try:
            return self.fetch(key)
        except NPMatchError as error:
            return NPMatchError(str(error))


Parts = TypeVar("Parts", bound=tuple[Tensor, ...])  # a NamedTuple of tensors

# Batches in flight: one whose copy has been started, one handed out, and two that steps still compute on.
SLOTS = 4


def copy_ahead(batches: Iterable[Parts], device: torch.device) -> Iterator[Parts]:
    """The same batches on a GPU; the copy of each batch is started before the previous batch is handed out.

    A batch may be used, for as long as it is kept, on the CUDA stream that was current when it was handed out.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    previous: _Slot[Parts] | None = None
    for batch, slot in zip(batches, cycle([_Slot[Parts](device, stream) for _ in range(SLOTS)]), strict=False):
        slot.start_copy(batch)
        if previous is not None:
            yield previous.hand_out()
            previous.free()
        previous = slot
    if previous is not None:
        yield previous.hand_out()


class _Slot(Generic[Parts]):
    """A pinned buffer, its copy on the device, and the CUDA events after which each may be overwritten or read."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self.device, self.stream = device, stream
        self.pinned: Parts | None = None
        self.copy: Parts | None = None
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # blocking: the host sleeps while it waits, as spinning would take a core from the decoding processes.
        self.used = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def start_copy(self, batch: Parts) -> None:
        """Starts the copy of a batch once the step on this slot's last one is done, which limits the host's lead."""
        self.used.synchronize()  # returns at once if the slot was never used
        if self.pinned is None:
            self.pinned = _rebuilt(batch, [torch.empty_like(part, pin_memory=True) for part in batch])
        for buffer, part in zip(self.pinned, batch, strict=True):
            buffer.copy_(part)
        with torch.cuda.stream(self.stream):
            self.copy = _rebuilt(batch, [part.to(self.device, non_blocking=True) for part in self.pinned])
            self.copied.record()

    def hand_out(self) -> Parts:
        """The batch on the device, for use on the current CUDA stream."""
        assert self.copy is not None
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self.copied)
        batch, self.copy = self.copy, None
        for part in batch:
            part.record_stream(current)  # allocated on the copy stream: keeps its memory until this stream has used it
        return batch

    def free(self) -> None:
        """Marks the batch as used once the work queued so far on the current CUDA stream is done."""
        self.used.record(torch.cuda.current_stream(self.device))


def _rebuilt(like: Parts, parts: list[Tensor]) -> Parts:
    kind: Any = type(like)
    rebuilt: Parts = kind(*parts)
    return rebuilt
