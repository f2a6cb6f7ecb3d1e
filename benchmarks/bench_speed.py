"""`npmatch bench step|uncertainty|scaling|augment|loader|memory`: how fast, and against what."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from benchmarks.cli import PlotOption, show
from npmatch.cli.shared import DeviceOption, JsonOption, check_device, recipe_and_settings
from npmatch.errors import NPMatchError

StepWords = Annotated[
    list[str] | None, typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="For example: backbone.name=wrn-28-8")
]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Turns that each variant is measured in.")]


class Precision(StrEnum):
    """Of a network's arithmetic."""

    float32 = "float32"
    bfloat16 = "bfloat16"


def step(
    words: StepWords = None,
    peak_tflops: Annotated[
        float,
        typer.Option("--peak-tflops", min=1e-3, help="What the device can do; 800 is about an H200's in bfloat16."),
    ] = 800.0,
    rounds: RoundsOption = 7,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """A training step against plain eager PyTorch, and NP-Match's against FixMatch's."""
    from benchmarks.figure import check_plot, draw_bars
    from benchmarks.step import bench_step

    check_plot(plot)
    recipe, settings = recipe_and_settings(words or [])
    result = bench_step(recipe, settings, check_device(device), peak_tflops, rounds)
    if plot:
        draw_bars(plot, {row["variant"]: row["milliseconds"] for row in result.rows}, "milliseconds a step")
    show(result, as_json)


def uncertainty(
    precision: Annotated[
        Precision, typer.Option("--precision", help="Of the networks; npmatch predict uses float32.")
    ] = Precision.float32,
    steps: Annotated[bool, typer.Option("--steps/--no-steps", help="UPS's training step against NP-Match's.")] = True,
    rounds: RoundsOption = 5,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """The cost of a prediction's uncertainty: NP-Match against MC dropout, T from 1 to 100."""
    from benchmarks.figure import check_plot
    from benchmarks.uncertainty import bench_uncertainty, plot_uncertainty

    check_plot(plot)
    result = bench_uncertainty(check_device(device), precision.value, steps, rounds)
    if plot:
        plot_uncertainty(result, plot)
    show(result, as_json)


def scaling(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="Default: digits-40.")
    ] = None,
    ranks: Annotated[str, typer.Option("--ranks", help="Numbers of ranks, the first being the measure.")] = "1,2",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Measured for each.")] = 30,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Images per second on several ranks of this machine, and the share of time they talk."""
    from benchmarks.scaling import bench_scaling

    counts = [int(word) for word in ranks.split(",") if word.isdecimal() and int(word)]
    if len(counts) != len(ranks.split(",")):
        raise NPMatchError(f"--ranks {ranks}: give numbers such as 1,2")
    recipe, settings = recipe_and_settings(words or [])
    show(bench_scaling(recipe, settings, counts, steps, check_device(device)), as_json)


def augment(
    cores: Annotated[int, typer.Option("--cores", min=1, help="Of the CPU.")] = 2,
    images: Annotated[int, typer.Option("--images", min=1, help="Of a batch.")] = 448,
    rounds: RoundsOption = 5,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Our views of a batch against torchvision's transforms image by image."""
    from benchmarks.augment import bench_augment
    from benchmarks.figure import check_plot, draw_bars

    check_plot(plot)
    result = bench_augment(check_device(device), cores, images, rounds)
    if plot:
        draw_bars(plot, {f"{r['view']}: {r['way']}": r["images_per_second"] for r in result.rows}, "images/s")
    show(result, as_json)


def loader(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="For example: backbone.name=timm:resnet18")
    ] = None,
    images: Annotated[int, typer.Option("--images", min=1, help="JPEG files to make.")] = 512,
    size: Annotated[int, typer.Option("--size", min=8, help="Side of the views, in pixels.")] = 224,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Default: one for each core, up to 16.")
    ] = None,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Training from JPEG files against decoding them alone, and how long the device waits."""
    from benchmarks.figure import check_plot, draw_bars
    from benchmarks.loader import bench_loader

    check_plot(plot)
    recipe, settings = recipe_and_settings(words or [])
    if recipe is not None:
        raise NPMatchError(f"'{recipe}': this bench has a recipe of its own; settings are written key=value")
    result = bench_loader(settings, check_device(device), images, size, workers)
    if plot:
        draw_bars(plot, {row["what"]: row["images_per_second"] for row in result.rows}, "images/s")
    show(result, as_json)


def memory(
    words: StepWords = None,
    rounds: RoundsOption = 5,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """A step's time and memory against the number of unlabelled images, 10⁴ to 10⁷."""
    from benchmarks.figure import Curve, check_plot, draw_curves
    from benchmarks.memory import bench_memory

    check_plot(plot)
    recipe, settings = recipe_and_settings(words or [])
    result = bench_memory(recipe, settings, check_device(device), rounds=rounds)
    if plot:
        counts, times = ([row[key] for row in result.rows] for key in ("unlabeled", "milliseconds"))
        draw_curves(plot, {"": [Curve("one step", counts, times)]}, "unlabelled images", "milliseconds")
    show(result, as_json)


VERBS = (step, uncertainty, scaling, augment, loader, memory)
