"""Raw batches on the device, step after step: gathered from memory there, or decoded and copied.

Both ways give equal batches, bit for bit: the sampler alone decides what step k sees.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from npmatch.data.copying import copied_ahead
from npmatch.data.images import ArrayImages
from npmatch.data.loading import default_workers, fetch_in_order, iterate_selected
from npmatch.data.split import Split
from npmatch.ranks import Share, neighbours
from npmatch.types import Dataset, ImageStore

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
        yield from copied_ahead(fetched, self.device) if self.device.type == "cuda" else fetched


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
    return _machine_memory() // neighbours()  # which all load at the same time


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
