"""`npmatch bench …`: the measured claims, each a verb of its own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from npmatch.bench import BenchResult
from npmatch.cli.shared import (
    DataOption,
    DeviceOption,
    JobsOption,
    JsonOption,
    OutOption,
    WordsArgument,
    check_device,
    print_json,
    recipe_and_settings,
    telling_of_a_stop,
)
from npmatch.types import NPMatchError

app = typer.Typer(help="The measured claims, each a ratio from one run.", no_args_is_help=True)

PlotOption = Annotated[Path | None, typer.Option("--plot", help="Write a figure: FILE.png, .svg or .pdf.")]
StepWords = Annotated[
    list[str] | None, typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="For example: backbone.name=wrn-28-8")
]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Turns that each variant is measured in.")]


class Precision(StrEnum):
    """Of a network's arithmetic."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@app.callback()
def bench() -> None:
    """The measured claims, each a ratio from one run."""


@app.command()
def step(
    words: StepWords = None,
    peak_tflops: Annotated[
        float, typer.Option("--peak-tflops", help="What the device can do; 800 is about an H200's in bfloat16.")
    ] = 800.0,
    rounds: RoundsOption = 7,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """A training step against plain eager PyTorch, and NP-Match's against FixMatch's."""
    from npmatch.bench.figure import check_plot, draw_bars
    from npmatch.bench.step import bench_step

    check_plot(plot)
    recipe, settings = recipe_and_settings(words or [])
    result = bench_step(recipe, settings, check_device(device), peak_tflops, rounds)
    if plot:
        draw_bars(plot, {row["variant"]: row["milliseconds"] for row in result.rows}, "milliseconds a step")
    show(result, as_json)


@app.command()
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
    from npmatch.bench.figure import check_plot
    from npmatch.bench.uncertainty import bench_uncertainty, plot_uncertainty

    check_plot(plot)
    result = bench_uncertainty(check_device(device), precision.value, steps, rounds)
    if plot:
        plot_uncertainty(result, plot)
    show(result, as_json)


@app.command()
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
    from npmatch.bench.scaling import bench_scaling

    counts = [int(word) for word in ranks.split(",") if word.isdecimal() and int(word)]
    if len(counts) != len(ranks.split(",")):
        raise NPMatchError(f"--ranks {ranks}: give numbers such as 1,2")
    recipe, settings = recipe_and_settings(words or [])
    show(bench_scaling(recipe, settings, counts, steps, check_device(device)), as_json)


@app.command()
def augment(
    cores: Annotated[int, typer.Option("--cores", min=1, help="Of the CPU.")] = 2,
    images: Annotated[int, typer.Option("--images", min=1, help="Of a batch.")] = 448,
    rounds: RoundsOption = 5,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Our views of a batch against torchvision's transforms image by image."""
    from npmatch.bench.augment import bench_augment
    from npmatch.bench.figure import check_plot, draw_bars

    check_plot(plot)
    result = bench_augment(check_device(device), cores, images, rounds)
    if plot:
        draw_bars(plot, {f"{r['view']}: {r['way']}": r["images_per_second"] for r in result.rows}, "images/s")
    show(result, as_json)


@app.command()
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
    from npmatch.bench.figure import check_plot, draw_bars
    from npmatch.bench.loader import bench_loader

    check_plot(plot)
    recipe, settings = recipe_and_settings(words or [])
    if recipe is not None:
        raise NPMatchError(f"'{recipe}': this bench has a recipe of its own; settings are written key=value")
    result = bench_loader(settings, check_device(device), images, size, workers)
    if plot:
        draw_bars(plot, {row["what"]: row["images_per_second"] for row in result.rows}, "images/s")
    show(result, as_json)


@app.command()
def memory(
    words: StepWords = None,
    rounds: RoundsOption = 5,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """A step's time and memory against the number of unlabelled images, 10⁴ to 10⁷."""
    from npmatch.bench.figure import Curve, check_plot, draw_curves
    from npmatch.bench.memory import bench_memory

    check_plot(plot)
    recipe, settings = recipe_and_settings(words or [])
    result = bench_memory(recipe, settings, check_device(device), rounds=rounds)
    if plot:
        counts, times = ([row[key] for row in result.rows] for key in ("unlabeled", "milliseconds"))
        draw_curves(plot, {"": [Curve("one step", counts, times)]}, "unlabelled images", "milliseconds")
    show(result, as_json)


@app.command()
def labelling(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many, from 0 on.")] = 5,
    start: Annotated[int, typer.Option("--from", min=10, help="Labels at first, as many of each digit.")] = 10,
    stop: Annotated[int, typer.Option("--to", help="Labels at last.")] = 60,
    step: Annotated[int, typer.Option("--step", min=1, help="Labels given in a round.")] = 10,
    iterations: Annotated[
        int, typer.Option("--iterations", min=1, help="Of a round; the first takes three times as many.")
    ] = 150,
    device: DeviceOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """The labelling loop on digits: error against labels, chosen at random, by uncertainty, and diversely."""
    from npmatch.bench.figure import check_plot
    from npmatch.bench.labelling import bench_labelling, plot_labelling

    check_plot(plot)
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        task = progress.add_task("rounds")

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        result = bench_labelling(seeds, start, stop, step, iterations, check_device(device), advance)
    if plot:
        plot_labelling(result, plot)
    show(result, as_json)


@app.command()
def abstention(
    words: WordsArgument,
    held_out: Annotated[int, typer.Option("--held-out", help="Labels to calibrate on, besides the recipe's.")] = 200,
    abstain: Annotated[float, typer.Option("--abstain", help="The highest error among what is kept.")] = 0.05,
    confidence: Annotated[float, typer.Option("--confidence", help="That it holds.")] = 0.9,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many, from 0 on.")] = 10,
    algorithm: Annotated[str, typer.Option("--algorithm", help="A name, or a variant.")] = "npmatch",
    jobs: JobsOption = 1,
    out: OutOption = None,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whether --abstain keeps its word: share kept and error among it on test images, seed by seed."""
    from npmatch.bench.abstention import bench_abstention

    recipe, settings = recipe_and_settings(words)
    if recipe is None:
        raise NPMatchError("name a recipe, for example digits-40")
    with telling_of_a_stop():
        result = bench_abstention(
            recipe,
            out or Path("runs") / f"bench-abstention-{recipe}",
            target=abstain,
            confidence=confidence,
            held_out=held_out,
            seeds=seeds,
            algorithm=algorithm,
            settings=settings,
            data=data,
            jobs=jobs,
            device=check_device(device),
            quiet=as_json,
        )
    show(result, as_json)


@app.command()
def serve(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A finished run; default: digits, hardly trained.")
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Images to have predicted.")] = 10_000,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests at a time.")] = 16,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """The served page under load: answered or refused, how quickly, and what becomes of its memory."""
    from npmatch.bench.serve import bench_serve

    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        task = progress.add_task("requests", total=requests)
        result = bench_serve(run, requests, concurrency, check_device(device), lambda n: progress.advance(task, n))
    show(result, as_json)


@app.command()
def faults(
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Runs to kill and resume.")] = 5,
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="Of each run.")] = 200,
    kills: Annotated[int, typer.Option("--kills", min=1, help="Deaths of each run, at most.")] = 3,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Of the moments and kinds of death.")] = 0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Digits runs killed at random moments and resumed: do they end as an undisturbed one, to the bit?"""
    from npmatch.bench.faults import bench_faults
    from npmatch.predict import choose_device

    result = bench_faults(rounds, iterations, str(choose_device(check_device(device))), jobs, kills, seed)
    show(result, as_json)
    if min(result.ratios.values()) < 1:
        raise typer.Exit(1)


def show(result: BenchResult, as_json: bool) -> None:
    """A result as a table, or as JSON alone."""
    if as_json:
        print_json(result.asdict())
        return
    console = Console()
    table = Table(*(column.heading for column in result.columns), title=result.about)
    for cells in result.cells():
        table.add_row(*map(Text, cells))
    console.print(table)
    for name, ratio in result.ratios.items():
        console.print(Text(f"{name}: {ratio:.2f}"), soft_wrap=True)
    for note in result.notes:
        console.print(Text(note), soft_wrap=True)
