"""Speed of augmentation: our views of a whole batch against torchvision's transforms, image by image.

Both take uint8 images and return uint8 images. A weak view is a flip and a crop after reflect padding; a strong one has
RandAugment's operations before it, and ours a cutout as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.command_line import PlotOption, RoundsOption, run, show
from benchmarks.plot import draw_bars
from benchmarks.result import BenchmarkResult, Column
from benchmarks.timing import Run, captured, interleaved, tell
from npmatch.augment import AugmentConfig, View, make_policy
from npmatch.cli.shared import DeviceOption, JsonOption, check_device
from npmatch.distributed.devices import choose_device
from npmatch.training.speed import COMPILE_OPTIONS

SIDE = 32
COLUMNS = [
    Column("view", "view"),
    Column("way", "way"),
    Column("milliseconds", "ms a batch", "{:.3f}"),
    Column("images_per_second", "images/s", "{:,.0f}"),
]
OURS, PILLOW, TENSOR = "ours", "torchvision, Pillow images", "torchvision, tensors"


def bench_augment(device: str | None = None, cores: int = 2, images: int = 448, rounds: int = 5) -> BenchmarkResult:
    """Times views on `cores` cores, and on the GPU where there is one and `device` is not cpu."""
    chosen = choose_device(device)
    cores = min(cores, os.cpu_count() or 1)
    pixels = torch.randint(256, (images, 3, SIDE, SIDE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    config = AugmentConfig()
    policy = make_policy(config, (3, SIDE, SIDE), (0.5, 0.5, 0.5))
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for name, view in (("strong", policy.strong), ("weak", policy.weak)):
        seconds = time_on_cores(view, torchvision_view(name, config), pixels, cores, rounds)
        theirs = min(seconds[PILLOW], seconds[TENSOR])
        ratios[f"{name} views on {cores} cores: torchvision / ours"] = theirs / seconds[OURS]
        if chosen.type == "cuda":
            on_device = time_on_device(view, pixels.to(chosen), rounds)
            ratios[f"{name} views: torchvision on {cores} cores / ours on the GPU"] = theirs / min(on_device.values())
            seconds |= on_device
        for way, value in seconds.items():
            tell(f"{name} views, {way}: {1000 * value:.3f} ms for {images} images")
            row = {"view": name, "way": way, "milliseconds": 1000 * value, "images_per_second": images / value}
            rows.append(row)
    return BenchmarkResult(
        name="augment",
        about=f"Views of {images} images of 3×{SIDE}×{SIDE} pixels; {config.operations} operations in a strong one",
        columns=COLUMNS,
        rows=rows,
        ratios=ratios,
        notes=[
            f"Ours runs in one process with {cores} threads. torchvision's was measured in a loop on one core and its "
            f"time divided by {cores}: as if it spread over the cores without loss.",
            "torchvision's strong view has no cutout. The ratios take the faster of its two forms.",
        ],
        device=str(chosen),
    )


def time_on_cores(
    view: View[Any], theirs: Callable[[Any], Any], pixels: Tensor, cores: int, rounds: int
) -> dict[str, float]:
    """Seconds a batch; those of torchvision as if all cores shared its work."""
    runs = {OURS: _call(view, pixels), PILLOW: one_by_one(theirs, pictures(pixels)), TENSOR: one_by_one(theirs, pixels)}
    with torch_threads(cores):
        seconds = interleaved(runs, "cpu", rounds)
    return {way: value if way == OURS else value / cores for way, value in seconds.items()}


def torchvision_view(kind: str, config: AugmentConfig) -> Callable[[Any], Any]:
    """The corresponding view of one image by torchvision.transforms.v2."""
    from torchvision.transforms import v2

    weak = [v2.RandomHorizontalFlip(), v2.RandomCrop(SIDE, padding=config.padding, padding_mode="reflect")]
    transform: Callable[[Any], Any] = v2.Compose(weak if kind == "weak" else [v2.RandAugment(config.operations), *weak])
    return transform


def pictures(pixels: Tensor) -> list[Any]:
    """The images as Pillow's, made beforehand, so that making them is not timed."""
    from PIL import Image

    return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]


def one_by_one(transform: Callable[[Any], Any], images: Iterable[Any]) -> Run:
    """A loop over the images."""
    return lambda: [transform(image) for image in images]


def time_on_device(view: View[Any], pixels: Tensor, rounds: int) -> dict[str, float]:
    """Our views on a GPU: as one graph, and compiled as in training."""
    compiled = torch.compile(view.__call__, dynamic=False, options=COMPILE_OPTIONS)
    runs = {
        "ours, GPU, captured": captured(_call(view, pixels)),
        "ours, GPU, compiled": captured(lambda: compiled(pixels)),
    }
    return interleaved(runs, str(pixels.device), rounds)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Lets torch use `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _call(view: View[Any], pixels: Tensor) -> Run:
    return lambda: view(pixels)


def main(
    cores: Annotated[int, typer.Option("--cores", min=1, help="Number of CPU cores.")] = 2,
    images: Annotated[int, typer.Option("--images", min=1, help="Number of images in a batch.")] = 448,
    rounds: RoundsOption = 5,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Augmentation of a batch against torchvision's transforms.

    torchvision's take one image after the other, in two forms: Pillow images and tensors.
    """
    result = bench_augment(check_device(device), cores, images, rounds)
    if plot:
        draw_bars(plot, {f"{r['view']}: {r['way']}": r["images_per_second"] for r in result.rows}, "images/s")
    show(result, as_json)


if __name__ == "__main__":
    sys.exit(run(main))
