"""Data loading: whether decoding JPEG files keeps up with training, through the streams that training uses.

Three speeds in images per second: decoding alone, steps alone on a batch that is there already, and training, which
does both at a time with the same workers. Training can be no faster than the slower of the two.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image

from benchmarks.command_line import PlotOption, run, show
from benchmarks.plot import draw_bars
from benchmarks.result import BenchmarkResult, Column
from benchmarks.synthetic import labelled_dataset, make_train_step
from benchmarks.timing import seconds_per_call, tell
from npmatch.cli.shared import DeviceOption, JsonOption, check_device, recipe_and_settings
from npmatch.config.resolve import resolve_config
from npmatch.config.tree import Config, parse_overrides
from npmatch.data import FileImages, RawBatch
from npmatch.data.loading import default_workers, fetch_in_order
from npmatch.data.streams import FetchedStream
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.training import Trainer

PHOTO = (500, 375)  # about the middle of ImageNet
CLASSES = 100
COLUMNS = [
    Column("what", "what"),
    Column("images_per_second", "images/s", "{:,.0f}"),
    Column("idle", "waiting for images", "{:.1%}"),
]
# On the CPU decoding and training share the cores, so the network is one that takes little of them.
ON_CPU = {
    "backbone.name": "cnn",
    "backbone.width": 4,
    "backbone.stem_stride": 2,
    "training.batch": 8,
    "augment.operations": 0,
    "augment.cutout": 0.0,
}


def bench_loader(
    overrides: list[str],
    device: str | None = None,
    images: int = 512,
    size: int = 224,
    workers: int | None = None,
) -> BenchmarkResult:
    """Makes `images` files; views are `size` pixels wide, and stored images an eighth wider, as ImageNet's are."""
    chosen = choose_device(device)
    workers = default_workers() if workers is None else workers
    config = loader_config(overrides, chosen, size, workers)
    with TemporaryDirectory() as folder:
        tell(f"making {images} photographs of {PHOTO[0]}×{PHOTO[1]} pixels")
        paths = make_photographs(Path(folder), images)
        mean_bytes = mean(path.stat().st_size for path in paths)
        speeds, idle, per_step = measure(config, paths, chosen, workers)
    rows: list[dict[str, Any]] = [{"what": what, "images_per_second": speed} for what, speed in speeds.items()]
    rows[-1]["idle"] = idle
    decoding, steps, training = speeds.values()
    who = "the GPU" if chosen.type == "cuda" else "the loop"
    notes = [
        f"Photographs of {mean_bytes / 1024:.0f} KiB each, in the page cache: decoding is measured, not a disk.",
        f"{who} waited for images {idle:.1%} of the time.",
    ]
    if chosen.type == "cpu":
        notes.append("On the CPU decoding and steps share the cores, so training is slower than either alone.")
    return BenchmarkResult(
        name="loader",
        about=f"Training from JPEG files: {config.backbone.name}, views of {size} px, {workers} workers, "
        f"{config.training.batch} + {per_step - config.training.batch} images a step",
        columns=COLUMNS,
        rows=rows,
        ratios={
            "training / decoding alone": training / decoding,
            "training / the slower of decoding and steps alone": training / min(decoding, steps),
        },
        notes=notes,
        device=str(chosen),
    )


def loader_config(overrides: list[str], device: torch.device, size: int, workers: int) -> Config:
    """ImageNet's recipe on few images, streamed; on the CPU with a small network."""
    own = {
        "data.labels": 10 * CLASSES,
        "data.image_size": size * 8 // 7,
        "data.resident": "never",
        "data.workers": workers,
        "augment.size": size,
        "training.iterations": 2**20,
        **(ON_CPU if device.type == "cpu" else {}),
    }
    given = parse_overrides(overrides)
    if given.get("data.resident", "never") != "never":
        raise NPMatchError(f"data.resident={given['data.resident']}: this benchmark measures streams; leave it out")
    return resolve_config("imagenet-100k", overrides={**own, **given})


def make_photographs(folder: Path, count: int) -> list[Path]:
    """JPEG files of broad colour patches under fine noise, with about as many bytes as a photograph of that size."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(count):
        patches = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(
            PHOTO, Image.Resampling.BICUBIC
        )
        noisy = np.asarray(patches) + rng.normal(0, 10, (PHOTO[1], PHOTO[0], 1))
        paths.append(folder / f"{number}.jpg")
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def measure(
    config: Config, paths: list[Path], device: torch.device, workers: int
) -> tuple[dict[str, float], float, int]:
    """The three speeds in images per second, the share of training time spent waiting, and the images in a step."""
    t = config.training
    wanted = t.batch * (1 + t.unlabeled_ratio)
    files = list(islice(cycle(paths), max(len(paths), 20 * CLASSES, 4 * wanted)))
    dataset = labelled_dataset(FileImages(files, config.data.image_size or 256), CLASSES)
    trainer = make_train_step(config, dataset, device).trainer
    stream = trainer.stream
    assert isinstance(stream, FetchedStream)  # data.resident=never
    raw = next(stream.batches(0, 1))
    per_step = raw.size
    # Workers begin with two batches each, which are taken before the clock starts.
    first, last = 2 * max(workers, 1), 6 * max(workers, 1)

    def decode() -> float:
        speed = per_step / _seconds_each(fetch_in_order(stream.steps, range(last), workers), first, last)
        tell(f"decoding alone: {speed:,.0f} images/s")
        return speed

    before = decode()
    steps = per_step / seconds_per_call(lambda: trainer.take_step(raw), str(device), repeats=3, calls=5)
    tell(f"steps alone: {steps:,.0f} images/s")
    seconds, idle = train(trainer, first, last, device)
    tell(f"training: {per_step / seconds:,.0f} images/s, waiting {idle:.1%}")
    # Decoding is timed once more, because other load on the machine may have changed meanwhile.
    decoding = mean([before, decode()])
    return {"decoding alone": decoding, "steps alone": steps, "training": per_step / seconds}, idle, per_step


def train(trainer: Trainer, first: int, last: int, device: torch.device) -> tuple[float, float]:
    """Seconds a step from step `first` on, and the share of them in which the device had nothing to do."""
    waits = _GpuWaits() if device.type == "cuda" else _HostWaits()
    batches = trainer.stream.batches(0, last)
    for _ in range(first):
        trainer.take_step(next(batches))
    waits.start()
    for _ in range(first, last):
        waits.before_batch()
        raw = next(batches)
        waits.before_step()
        trainer.take_step(raw)
    total, waited = waits.finish()
    return total / (last - first), waited / total


class _HostWaits:
    """Waiting time of a host that runs the steps itself: it waits whenever it asks for a batch."""

    def start(self) -> None:
        self.started, self.waited = time.perf_counter(), 0.0

    def before_batch(self) -> None:
        self.asked = time.perf_counter()

    def before_step(self) -> None:
        self.waited += time.perf_counter() - self.asked

    def finish(self) -> tuple[float, float]:
        """Seconds in all, and seconds spent waiting."""
        return time.perf_counter() - self.started, self.waited


class _GpuWaits:
    """Waiting time of a GPU: from the end of one step to the beginning of the next, by its own clock."""

    def start(self) -> None:
        torch.cuda.synchronize()
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.started = time.perf_counter()

    def before_batch(self) -> None:
        self.ended = _recorded()  # when the step before is done

    def before_step(self) -> None:
        self.events.append((self.ended, _recorded()))  # when the batch is there as well

    def finish(self) -> tuple[float, float]:
        """Seconds in all, and seconds spent waiting."""
        torch.cuda.synchronize()
        total = time.perf_counter() - self.started
        return total, sum(ended.elapsed_time(begun) for ended, begun in self.events) / 1000


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _seconds_each(batches: Iterator[RawBatch], first: int, last: int) -> float:
    """Mean seconds from one batch to the next, after the first ones."""
    for _ in range(first):
        next(batches)
    started = time.perf_counter()
    for _ in range(first, last):
        next(batches)
    return (time.perf_counter() - started) / (last - first)


def main(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as backbone.name=timm:resnet18."),
    ] = None,
    images: Annotated[int, typer.Option("--images", min=1, help="Number of JPEG files to make.")] = 512,
    size: Annotated[int, typer.Option("--size", min=8, help="Side of the views, in pixels.")] = 224,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=0, help="Number of decoding processes; default: one for each core, up to 16."),
    ] = None,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Training from JPEG files against decoding them alone.

    It also shows the share of time in which the device waits for images.
    """
    recipe, settings = recipe_and_settings(words or [])
    if recipe is not None:
        raise NPMatchError(f"'{recipe}': this benchmark has a recipe of its own; settings are written key=value")
    result = bench_loader(settings, check_device(device), images, size, workers)
    if plot:
        draw_bars(plot, {row["what"]: row["images_per_second"] for row in result.rows}, "images/s")
    show(result, as_json)


if __name__ == "__main__":
    sys.exit(run(main))
