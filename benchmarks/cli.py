"""What the benches' verbs share: their group, their options, and how a result is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks import BenchResult
from npmatch.cli.shared import print_json

app = typer.Typer(help="The measured claims, each a ratio from one run.", no_args_is_help=True)

PlotOption = Annotated[Path | None, typer.Option("--plot", help="Write a figure: FILE.png, .svg or .pdf.")]


@app.callback()
def bench() -> None:
    """The measured claims, each a ratio from one run."""


def show(result: BenchResult, as_json: bool) -> None:
    """A result as a table, or as JSON alone."""
    if as_json:
        print_json(result.asdict())
        return
    console = Console()
    table = Table(title=result.about)
    for column in result.shown():
        table.add_column(column.heading, overflow="fold")  # rather than cut
    for cells in result.cells():
        table.add_row(*map(Text, cells))
    console.print(table)
    for name, ratio in result.ratios.items():
        console.print(Text(f"{name}: {ratio:.2f}"), soft_wrap=True)
    for note in result.notes:
        console.print(Text(note), soft_wrap=True)
