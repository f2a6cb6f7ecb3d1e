"""Time and memory of a training step against the size of the unlabelled set, from ten thousand images to ten million.

What an algorithm stores for every image grows with the set; what a step touches must not. The images themselves are
a few thousand that repeat.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from benchmarks.command_line import PlotOption, RecipeArgument, RoundsOption, run, show
from benchmarks.plot import Curve, draw_curves
from benchmarks.result import BenchmarkResult, Column
from benchmarks.step import time_steps
from benchmarks.synthetic import TrainStep, labelled_dataset, make_train_step, synthetic_dataset, variant_config
from npmatch.cli.shared import DeviceOption, JsonOption, check_device, recipe_and_settings
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
    """A store that repeats its images until there are `count` of them."""

    def __init__(self, store: ImageStore, count: int) -> None:
        """`count` may be far larger than the store."""
        self.store, self.count = store, count
        self.shape = store.shape

    def __len__(self) -> int:
        """The number of images, repetitions included."""
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
) -> BenchmarkResult:
    """Times a step with each number of unlabelled images, in turns of one run."""
    chosen = choose_device(device)
    recipe = recipe or ("cifar10-250" if chosen.type == "cuda" else "digits-40")
    given = parse_overrides(overrides)
    name = resolve_config(recipe, overrides=given).name
    settings = {"training.iterations": 2**20, "data.resident": "never"}
    config = variant_config(recipe, name, given, settings)
    dataset = synthetic_dataset(config)
    labels = {count: f"{count:,} images" for count in counts}
    steps = {labels[count]: partial(step_on_many_images, config, dataset, count, chosen) for count in counts}
    seconds, rows, runs = time_steps(steps, chosen, rounds)
    for count, row in zip(counts, rows, strict=True):
        row["unlabeled"] = count
        row["state_mib"] = sum(t.nbytes for t in runs[labels[count]].trainer.algorithm.state_dict().values()) / 2**20
    smallest, largest = min(counts), max(counts)
    return BenchmarkResult(
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


def step_on_many_images(config: Config, dataset: Dataset, count: int, device: torch.device) -> TrainStep:
    """Training on `count` images, of which few exist; these lie on the device."""
    held = dataset.train.images.take(torch.arange(min(HELD, len(dataset.train))))
    many = labelled_dataset(RepeatedImages(dataset.train.images, count), len(dataset.class_names))
    train_step = make_train_step(config, many, device)
    stream = train_step.trainer.stream
    assert isinstance(stream, FetchedStream)  # data.resident=never
    steps = stream.steps
    labeled, unlabeled = steps.labeled % len(held), steps.unlabeled % len(held)
    train_step.trainer.stream = ResidentStream(held.to(device), steps.labels, labeled, unlabeled, steps.draw)
    train_step.batches = train_step.trainer.stream.batches(0, config.training.iterations)
    return train_step


def main(
    words: RecipeArgument = None,
    rounds: RoundsOption = 5,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time and memory of a step against the number of images.

    The number goes from 10⁴ to 10⁷.
    """
    recipe, settings = recipe_and_settings(words or [])
    result = bench_memory(recipe, settings, check_device(device), rounds=rounds)
    if plot:
        counts, times = ([row[key] for row in result.rows] for key in ("unlabeled", "milliseconds"))
        draw_curves(plot, {"": [Curve("one step", counts, times)]}, "unlabelled images", "milliseconds")
    show(result, as_json)


if __name__ == "__main__":
    sys.exit(run(main))
