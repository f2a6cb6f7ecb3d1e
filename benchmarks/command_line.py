"""The command line that all benchmarks share: options, one-line errors, and how a result is printed."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.plot import check_plot
from benchmarks.result import OUTPUTS, BenchmarkResult
from npmatch.cli import runner
from npmatch.cli.shared import print_json, recipe_and_settings
from npmatch.errors import NPMatchError

RecipeArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...", help="Recipe and settings, such as cifar10-250 backbone.name=wrn-28-8."
    ),
]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Number of turns in which each variant is timed.")]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", callback=check_plot, help="File to draw a figure into: FILE.png, .svg or .pdf."),
]


def named_recipe(words: list[str] | None) -> tuple[str, list[str]]:
    """Split `RECIPE [KEY=VALUE]...` into the recipe and the settings; refuses words that name no recipe."""
    recipe, settings = recipe_and_settings(words)
    if recipe is None:
        raise NPMatchError("name a recipe, for example digits-40")
    return recipe, settings


def check_outputs(paths: list[Path] | None) -> list[Path] | None:
    """Refuses files that cannot be written, before anything is measured for them."""
    for path in paths or []:
        if path.suffix not in OUTPUTS:
            raise NPMatchError(f"-o {path}: name a file that ends in {', '.join(OUTPUTS)}")
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise NPMatchError(f"-o {path}: cannot be written there; name a file in a folder that exists")
    return paths


OutputOption = Annotated[
    list[Path] | None,
    typer.Option(
        "-o",
        "--output",
        callback=check_outputs,
        help="File for the tables (.md), the whole result (.json) or the single trainings (.jsonl); may be repeated.",
    ),
]


def run(main: Callable[..., object], words: list[str] | None = None) -> int:
    """Runs the `main` function of a benchmark's module, by default with the arguments of this process."""
    return run_app(as_app(main), f"python -m benchmarks.{Path(inspect.getfile(main)).stem}", words)


def as_app(main: Callable[..., object]) -> typer.Typer:
    """A command line whose arguments and options are the parameters of `main`."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(main)
    return app


def run_app(app: typer.Typer, program: str, words: list[str] | None = None) -> int:
    """Runs a command line and returns its exit code; errors and exit codes are those of `npmatch`."""
    runner.set_up_process()
    if runner.launched_by_torchrun() and os.environ.get("WORLD_SIZE", "1") != "1":
        return runner.fail("torchrun is not for benchmarks; leave it out", program) if runner.is_first_rank() else 2
    return runner.run_app(app, sys.argv[1:] if words is None else words, program)


def show(result: BenchmarkResult, as_json: bool) -> None:
    """Prints a result as a table or several, or as JSON alone."""
    if as_json:
        print_json(result.asdict())
        return
    console = Console()
    tables = result.tables()
    if result.about not in tables:
        console.print(Text(result.about), soft_wrap=True)
    for title, columns in tables.items():
        table = Table(title=title)
        for column in columns:
            table.add_column(column.heading, overflow="fold")  # rather than cut
        for cells in result.cells(columns):
            table.add_row(*map(Text, cells))
        console.print(table)
    for name, ratio in result.ratios.items():
        console.print(Text(f"{name}: {ratio:.2f}"), soft_wrap=True)
    for note in result.notes:
        console.print(Text(note), soft_wrap=True)
