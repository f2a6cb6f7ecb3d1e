"""What a larger unlabelled set costs: time of a step and memory, from ten thousand images to ten million.

What an algorithm remembers of every image grows with the set; what a step touches must not. The images themselves are
a few thousand that repeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from benchmarks.practice import Practice, labelled, practice_config, practice_dataset, practise
from benchmarks.result import BenchResult, Column
from benchmarks.step import time_steps
from npmatch.config.resolve import resolve_config
from npmatch.config.tree import Config, parse_overrides
from npmatch.data.streams import FetchedStream, ResidentStream
from npmatch.distributed.devices import choose_device
from npmatch.types import Dataset, ImageStore

COUNTS = (10**4, 10**5, 10**6, 10**7)
HELD = 1000  # images that really exist
COLUMNS = [
    Column("unlabeled", "unlabelled images", "{:,}"),
    Column("milliseconds", "ms a step", "{:.2f}"),
    Column("state_mib", "algorithm's state, MiB", "{:,.1f}"),
    Column("peak_gib", "peak GPU memory, GiB", "{:.2f}"),
]


class RepeatedImages(ImageStore):
    """A store whose images come again and again until there are `count` of them."""

    def __init__(self, store: ImageStore, count: int) -> None:
        """`count` may be far larger than the store."""
        self.store, self.count = store, count
        self.shape = store.shape

    def __len__(self) -> int:
        """`count`."""
        return self.count

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        return self.store.take(index % len(self.store))


def bench_memory(
    recipe: str | None = None,
    overrides: Iterable[str] = (),
    device: str | None = None,
    counts: tuple[int, ...] = COUNTS,
    rounds: int = 5,
) -> BenchResult:
    """Every size takes its turn in one run."""
    chosen = choose_device(device)
    recipe = recipe or ("cifar10-250" if chosen.type == "cuda" else "digits-40")
    given = parse_overrides(overrides)
    name = resolve_config(recipe, overrides=given).name
    settings = {"training.iterations": 2**20, "data.resident": "never"}
    config = practice_config(recipe, name, given, settings)
    dataset = practice_dataset(config)
    labels = {count: f"{count:,} images" for count in counts}
    seconds, rows, runs = time_steps(
        {labels[count]: partial(practise_many, config, dataset, count, chosen) for count in counts}, chosen, rounds
    )
    for count, row in zip(counts, rows, strict=True):
        row["unlabeled"] = count
        row["state_mib"] = sum(t.nbytes for t in runs[labels[count]].trainer.algorithm.state_dict().values()) / 2**20
    smallest, largest = min(counts), max(counts)
    return BenchResult(
        name="memory",
        about=f"One {name} step against the number of unlabelled images: {recipe}, {config.backbone.name}",
        columns=COLUMNS,
        rows=rows,
        ratios={
            f"step with {largest:,} / with {smallest:,} unlabelled images": seconds[labels[largest]]
            / seconds[labels[smallest]]
        },
        notes=["Not in the time of a step: the shuffle of the set, once for each pass over it."],
        device=str(chosen),
    )


def practise_many(config: Config, dataset: Dataset, count: int, device: torch.device) -> Practice:
    """A trainer on `count` images of which few exist; these lie on the device."""
    held = dataset.train.images.take(torch.arange(min(HELD, len(dataset.train))))
    many = labelled(RepeatedImages(dataset.train.images, count), len(dataset.class_names))
    practice = practise(config, many, device)
    stream = practice.trainer.stream
    assert isinstance(stream, FetchedStream)  # data.resident=never
    steps = stream.steps
    labeled, unlabeled = steps.labeled % len(held), steps.unlabeled % len(held)
    practice.trainer.stream = ResidentStream(held.to(device), steps.labels, labeled, unlabeled, steps.draw)
    practice.batches = practice.trainer.stream.batches(0, config.training.iterations)
    return practice
