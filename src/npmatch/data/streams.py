"""Batches of raw images: which positions each step sees (`Sampler`), and how their pixels come (`make_stream`)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from npmatch.data.images import ArrayImages
from npmatch.data.loading import copy_ahead, default_workers, fetch_in_order, iterate_selected
from npmatch.data.split import Split
from npmatch.distributed.ranks import Share, local_world_size
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.types import Dataset, ImageStore


class Sampler:
    """Labelled images with replacement; unlabelled ones in passes over the set, no two alike in a batch."""

    def __init__(
        self, seed: int, num_labeled: int, num_unlabeled: int, batch_labeled: int, batch_unlabeled: int
    ) -> None:
        """`batch_unlabeled` may be 0, for training on labels alone."""
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
        self._order = torch.empty(0, dtype=torch.int64)  # the set shuffled for `_epoch`: a cache, not state

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Positions in the labelled set, B, and in the unlabelled set, U; int64."""
        return self._labeled(step), self._unlabeled(step)

    def _labeled(self, step: int) -> Tensor:
        shape = (self.batch_labeled,)
        return torch.randint(max(self.num_labeled, 1), shape, generator=self._generator("labeled", step))

    def _unlabeled(self, step: int) -> Tensor:
        if not self.batch_unlabeled:
            return torch.empty(0, dtype=torch.int64)
        steps_per_epoch = self.num_unlabeled // self.batch_unlabeled
        epoch, place = divmod(step, steps_per_epoch)
        if epoch != self._epoch:  # so that a step costs the batch, and only an epoch costs the set
            self._order = torch.randperm(self.num_unlabeled, generator=self._generator("unlabeled", epoch))
            self._epoch = epoch
        first = place * self.batch_unlabeled
        return self._order[first : first + self.batch_unlabeled].clone()

    def _generator(self, stream: str, counter: int) -> torch.Generator:
        return torch.Generator().manual_seed(mix(self.seed, stream, counter))


# Of a step: positions in the labelled set, B, and in the unlabelled set, U. Usually a `Sampler`.
Draw = Callable[[int], tuple[Tensor, Tensor]]


class RawBatch(NamedTuple):
    """One step's images before augmentation. It holds no label of an unlabelled image.

    On several ranks the images are this rank's share, labels and positions those of the whole batch.
    """

    x: Tensor  # B C H W, uint8
    y: Tensor  # B, int64
    u: Tensor  # U C H W, uint8
    index: Tensor  # type: ignore[assignment]  # U, int64: positions in the unlabelled set, no two alike

    @property
    def size(self) -> int:
        """Images of the whole batch, labelled and unlabelled."""
        return len(self.y) + len(self.index)

    def to(self, device: torch.device) -> RawBatch:
        """The same batch on `device`; from pinned memory to a GPU the copy does not wait."""
        ahead = device.type == "cuda"  # the other way, the host would read what has not arrived yet
        return RawBatch(*(part.to(device, non_blocking=ahead) for part in self))


class Stream(Protocol):
    """Where the loop takes its batches from."""

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
    """Resident when "auto" finds that the images fit `memory_share` of the device's free memory.

    `workers` are the processes that read and decode images; None: as many as there are cores, up to 16. `share` says
    which of a step's images are read here; labels and positions always come for the whole batch.
    """
    device = torch.device(device)
    workers = default_workers() if workers is None else workers
    store = dataset.train.images
    labels = dataset.train.labels[split.labeled]  # the only labels that go any further
    if isinstance(store, ArrayImages) and device.type == "cpu" and resident != "never":
        return ResidentStream(store.pixels, labels, split.labeled, split.unlabeled, sampler, share)  # as it lies
    supervised = len(sampler(0)[1]) == 0
    used = torch.unique(split.labeled if supervised else torch.cat([split.labeled, split.unlabeled]))
    fits = len(used) * math.prod(store.shape) <= memory_share * free_memory(device)
    if resident == "always" or (resident == "auto" and fits):
        pixels = _load(store, used, device, workers)
        # Rows of `pixels`, which lacks the images that no step uses.
        labeled, unlabeled = (torch.searchsorted(used, part) for part in (split.labeled, split.unlabeled))
        return ResidentStream(pixels, labels, labeled, unlabeled, sampler, share)
    return FetchedStream(StepImages(store, labels, split.labeled, split.unlabeled, sampler, share), device, workers)


class ResidentStream:
    """All images lie on the device as uint8; a batch is gathered there."""

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        labeled: Tensor,
        unlabeled: Tensor,
        draw: Draw,
        share: Share = Share(),  # noqa: B008 - frozen
    ) -> None:
        """`pixels` on the device; `labels` of the labelled set; rows of `pixels` for both sets."""
        self.pixels = pixels  # n C H W
        self.labels, self.labeled, self.unlabeled = (part.to(pixels.device) for part in (labels, labeled, unlabeled))
        self.draw, self.share = draw, share

    def batches(self, start: int, stop: int) -> Iterator[RawBatch]:
        """The batches of steps start … stop − 1, on the device."""
        device = self.pixels.device
        for step in range(start, stop):
            b, index = (positions.to(device, non_blocking=True) for positions in self.draw(step))
            rows = (self.labeled[self.share.of(b)], self.unlabeled[self.share.of(index)])
            x, u = (self.pixels.index_select(0, chosen) for chosen in rows)
            yield RawBatch(x, self.labels[b], u, index)


class FetchedStream:
    """Images are decoded and gathered by worker processes, a few steps ahead, and copied to the device."""

    def __init__(self, steps: StepImages, device: torch.device, workers: int) -> None:
        """`workers`: processes; 0 does the work between two steps."""
        self.steps, self.device, self.workers = steps, device, workers

    def batches(self, start: int, stop: int) -> Iterator[RawBatch]:
        """The batches of steps start … stop − 1, on the device."""
        fetched = fetch_in_order(self.steps, range(start, stop), self.workers)
        yield from copy_ahead(fetched, self.device) if self.device.type == "cuda" else fetched


class StepImages:
    """The batch of any one step, on the CPU; workers hold a copy of this and share nothing."""

    def __init__(
        self,
        store: ImageStore,
        labels: Tensor,
        labeled: Tensor,
        unlabeled: Tensor,
        draw: Draw,
        share: Share = Share(),  # noqa: B008 - frozen
    ) -> None:
        """`labels` of the labelled set; indices into `store` for both sets."""
        self.store, self.draw, self.share = store, draw, share
        self.labels, self.labeled, self.unlabeled = labels, labeled, unlabeled

    def __call__(self, step: int) -> RawBatch:
        """The batch of `step`."""
        b, index = self.draw(step)
        x = self.store.take(self.labeled[self.share.of(b)])
        u = self.store.take(self.unlabeled[self.share.of(index)])
        return RawBatch(x, self.labels[b], u, index)


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated on the device now; of a machine's own memory, this rank's part."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return _machine_memory() // local_world_size()  # which all load at the same time


def _machine_memory() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        (line,) = (line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # where only the total is known


def _load(store: ImageStore, index: Tensor, device: torch.device, workers: int) -> Tensor:
    """The images at `index` on the device, uint8 n C H W; files are decoded by `workers` processes, once."""
    pixels = torch.empty((len(index), *store.shape), dtype=torch.uint8, device=device)
    row = 0
    for images in iterate_selected(store, index, batch_size=128, workers=workers):
        pixels[row : row + len(images)] = images
        row += len(images)
    return pixels
