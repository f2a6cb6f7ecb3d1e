"""Batches of raw images: `Sampler` draws the positions of each step, `make_stream` supplies their pixels."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from npmatch.data.images import ArrayImages, DecodedImages
from npmatch.data.loading import PREFETCHED, SLOTS, copy_ahead, fetch_in_order, iterate_selected, workers_or_default
from npmatch.data.split import Split
from npmatch.distributed.ranks import Share, local_world_size
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.types import Dataset, ImageStore


class Sampler:
    """Draws labelled images with replacement, and unlabelled ones in shuffled epochs: never one twice in a batch."""

    def __init__(
        self, seed: int, num_labeled: int, num_unlabeled: int, batch_labeled: int, batch_unlabeled: int
    ) -> None:
        """`batch_unlabeled` may be 0, for supervised training."""
        if batch_labeled and not num_labeled:
            raise NPMatchError("there is no labelled image; label some, or raise the number of labels")
        if batch_unlabeled > num_unlabeled:
            raise NPMatchError(
                f"an unlabelled batch of {batch_unlabeled} is larger than the set of {num_unlabeled}; "
                "lower training.unlabeled_ratio or training.batch"
            )
        self.seed = seed
        self.num_labeled, self.num_unlabeled = num_labeled, num_unlabeled
        self.batch_labeled, self.batch_unlabeled = batch_labeled, batch_unlabeled
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)  # the unlabelled set shuffled for `_epoch`; a cache, not state

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """The positions of a step in the labelled set, B, and in the unlabelled set, U; int64."""
        return self._labeled(step), self._unlabeled(step)

    def _labeled(self, step: int) -> Tensor:
        shape = (self.batch_labeled,)
        return torch.randint(max(self.num_labeled, 1), shape, generator=self._generator("labeled", step))

    def _unlabeled(self, step: int) -> Tensor:
        if not self.batch_unlabeled:
            return torch.empty(0, dtype=torch.int64)
        steps_per_epoch = self.num_unlabeled // self.batch_unlabeled
        epoch, place = divmod(step, steps_per_epoch)
        if epoch != self._epoch:  # shuffled once per epoch: a step takes time for its batch, not for the set
            self._order = torch.randperm(self.num_unlabeled, generator=self._generator("unlabeled", epoch))
            self._epoch = epoch
        first = place * self.batch_unlabeled
        return self._order[first : first + self.batch_unlabeled].clone()

    def _generator(self, stream: str, counter: int) -> torch.Generator:
        return torch.Generator().manual_seed(mix(self.seed, stream, counter))


# step → positions in the labelled set, B, and in the unlabelled set, U; usually a `Sampler`.
Draw = Callable[[int], tuple[Tensor, Tensor]]


class RawBatch(NamedTuple):
    """The images of one step before augmentation, without the labels of unlabelled images.

    On several ranks the images are the local shard, while labels and positions cover the whole batch.
    """

    x: Tensor  # B C H W, uint8
    y: Tensor  # B, int64
    u: Tensor  # U C H W, uint8
    index: Tensor  # type: ignore[assignment]  # U, int64: positions in the unlabelled set, no two alike
    labeled: Tensor  # B, int64: positions in the labelled set

    @property
    def size(self) -> int:
        """Number of images in the whole batch, labelled and unlabelled."""
        return len(self.y) + len(self.index)

    def to(self, device: torch.device) -> RawBatch:
        """The same batch on `device`; a copy from pinned memory to a GPU is asynchronous."""
        to_gpu = device.type == "cuda"  # in the other direction the host could read before the copy has finished
        return RawBatch(*(part.to(device, non_blocking=to_gpu) for part in self))


class Stream(Protocol):
    """The source of the training loop's batches."""

    def batches(self, start: int, stop: int) -> Iterator[RawBatch]:
        """The batches of steps start … stop − 1, on the device."""
        ...


def make_stream(
    dataset: Dataset,
    split: Split,
    sampler: Draw,
    device: str | torch.device,
    resident: Literal["auto", "always", "never"] = "auto",
    memory_share: float = 0.25,
    workers: int | None = None,
    share: Share = Share(),  # noqa: B008 - frozen
) -> Stream:
    """A stream that keeps all images on the device ("always"), or one that loads every batch ("never").

    "auto" keeps the images on the device if they fit into `memory_share` of its free memory. `workers` is the number of
    processes that read and decode images; None means one per core, up to 16. `share` is the part of each batch whose
    images this rank loads; labels and positions always cover the whole batch.
    """
    device = torch.device(device)
    workers = workers_or_default(workers)
    store = dataset.train.images
    labels = dataset.train.labels[split.labeled]  # no other label leaves this function
    if isinstance(store, ArrayImages | DecodedImages) and device.type == "cpu" and resident != "never":
        return ResidentStream(store.pixels, labels, split.labeled, split.unlabeled, sampler, share)  # no copy
    supervised = len(sampler(0)[1]) == 0
    used = torch.unique(split.labeled if supervised else torch.cat([split.labeled, split.unlabeled]))
    fits = len(used) * math.prod(store.shape) <= memory_share * free_memory(device)
    if resident == "always" or (resident == "auto" and fits):
        pixels = _load(store, used, device, workers)
        # Positions become rows of `pixels`, which has only the images that are used.
        labeled, unlabeled = (torch.searchsorted(used, part) for part in (split.labeled, split.unlabeled))
        return ResidentStream(pixels, labels, labeled, unlabeled, sampler, share)
    return FetchedStream(StepImages(store, labels, split.labeled, split.unlabeled, sampler, share), device, workers)


class ResidentStream:
    """Keeps all images on the device as uint8 and gathers each batch there."""

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        labeled: Tensor,
        unlabeled: Tensor,
        draw: Draw,
        share: Share = Share(),  # noqa: B008 - frozen
    ) -> None:
        """`pixels` is on the device; `labels` are those of the labelled set; both sets are rows of `pixels`."""
        self.pixels = pixels  # n C H W
        self.labels, self.labeled, self.unlabeled = (part.to(pixels.device) for part in (labels, labeled, unlabeled))
        self.draw, self.share = draw, share

    def batches(self, start: int, stop: int) -> Iterator[RawBatch]:
        """The batches of steps start … stop − 1, on the device."""
        device = self.pixels.device
        for step in range(start, stop):
            b, index = (positions.to(device, non_blocking=True) for positions in self.draw(step))
            rows = (self.labeled[self.share.of(b)], self.unlabeled[self.share.of(index)])
            x, u = (self.pixels.index_select(0, row) for row in rows)
            yield RawBatch(x, self.labels[b], u, index, b)


class FetchedStream:
    """Decodes and gathers batches in worker processes, a few steps ahead, and copies them to the device."""

    def __init__(self, steps: StepImages, device: torch.device, workers: int) -> None:
        """`workers` is the number of processes; 0 loads each batch in this process, between two steps."""
        self.steps, self.device, self.workers = steps, device, workers
        self.ahead = PREFETCHED * workers + SLOTS  # batches that may be ready before they are needed, at most

    def batches(self, start: int, stop: int) -> Iterator[RawBatch]:
        """The batches of steps start … stop − 1, on the device."""
        fetched = fetch_in_order(self.steps, range(start, stop), self.workers)
        yield from copy_ahead(fetched, self.device) if self.device.type == "cuda" else fetched


class StepImages:
    """Loads the batch of any step, on the CPU; each worker process has its own copy of this object."""

    def __init__(
        self,
        store: ImageStore,
        labels: Tensor,
        labeled: Tensor,
        unlabeled: Tensor,
        draw: Draw,
        share: Share = Share(),  # noqa: B008 - frozen
    ) -> None:
        """`labels` are those of the labelled set; both sets are given as positions in `store`."""
        self.store, self.draw, self.share = store, draw, share
        self.labels, self.labeled, self.unlabeled = labels, labeled, unlabeled

    def __call__(self, step: int) -> RawBatch:
        """The batch of `step`."""
        b, index = self.draw(step)
        x = self.store.take(self.labeled[self.share.of(b)])
        u = self.store.take(self.unlabeled[self.share.of(index)])
        return RawBatch(x, self.labels[b], u, index, b)


def free_memory(device: torch.device) -> int:
    """Free memory of the device in bytes; of the host's memory, the part of this rank."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allowed = int(torch.cuda.get_per_process_memory_fraction(device.index) * total)
        return min(free, allowed - torch.cuda.memory_reserved(device))
    return _machine_memory() // local_world_size()  # as all local ranks load at the same time


def _machine_memory() -> int:
    """Available memory of the host in bytes."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        (line,) = (line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # only the total is known here


def _load(store: ImageStore, index: Tensor, device: torch.device, workers: int) -> Tensor:
    """The images at `index` on the device, uint8, n C H W; files are decoded once, by `workers` processes."""
    pixels = torch.empty((len(index), *store.shape), dtype=torch.uint8, device=device)
    row = 0
    for images in iterate_selected(store, index, batch_size=128, workers=workers):
        pixels[row : row + len(images)] = images
        row += len(images)
    return pixels
