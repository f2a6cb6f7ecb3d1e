"""`npmatch bench labelling|abstention|serve|faults`: whether what is promised in use holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.cli import PlotOption, show
from npmatch.cli.shared import (
    DataOption,
    DeviceOption,
    JobsOption,
    JsonOption,
    OutOption,
    WordsArgument,
    check_device,
    recipe_and_settings,
    telling_of_a_stop,
)
from npmatch.errors import NPMatchError


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
    from benchmarks.figure import check_plot
    from benchmarks.labelling import bench_labelling, plot_labelling

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
    from benchmarks.abstention import bench_abstention

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
    from benchmarks.serve import bench_serve

    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        task = progress.add_task("requests", total=requests)
        result = bench_serve(run, requests, concurrency, check_device(device), lambda n: progress.advance(task, n))
    show(result, as_json)


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
    from benchmarks.faults import bench_faults
    from npmatch.distributed.devices import choose_device

    result = bench_faults(rounds, iterations, str(choose_device(check_device(device))), jobs, kills, seed)
    show(result, as_json)
    if min(result.ratios.values()) < 1:
        raise typer.Exit(1)


VERBS = (labelling, abstention, serve, faults)
