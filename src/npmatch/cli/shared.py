"""What the verbs of the command line share: options, words, and how results and errors are printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npmatch.cli.runner import fail
from npmatch.errors import NPMatchError

DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="With a recipe: where its files are. Without: an image folder or a CSV."),
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu or cuda; default: cuda where there is one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON alone.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
WordsArgument = Annotated[
    list[str], typer.Argument(metavar="RECIPE [KEY=VALUE]...", help="For example: digits-40 training.batch=32")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="A folder for the runs, the tables and the report; default runs/….")
]
SeedsOption = Annotated[int, typer.Option("--seeds", help="How many.")]
FirstSeedOption = Annotated[int, typer.Option("--first-seed", help="The others follow it.")]
IterationsOption = Annotated[int | None, typer.Option("--budget-iterations", help="Training steps of every run.")]
MinutesOption = Annotated[float | None, typer.Option("--budget-minutes", help="Training time of every run.")]
JobsOption = Annotated[int, typer.Option("--jobs", help="Runs at a time.")]


def recipe_and_settings(words: list[str]) -> tuple[str | None, list[str]]:
    """The words of a command line: a recipe, if one is named, and key=value settings."""
    plain = [word for word in words if "=" not in word]
    if len(plain) > 1:
        raise NPMatchError(f"one recipe at a time, not {' and '.join(plain)}; settings are written key=value")
    return (plain[0] if plain else None), [word for word in words if "=" in word]


def check_device(name: str | None) -> str | None:
    """A device torch knows, or one line that says which there are."""
    if name is not None and name.split(":")[0] not in ("cpu", "cuda"):
        raise NPMatchError(f"--device {name}: choose cpu or cuda")
    return name


def score_table(scores: dict[str, Any]) -> Table:
    """The headline figures as one row."""
    columns = {
        "error": ("error", "{:.2f} %"),
        "top5_error": ("top-5 error", "{:.2f} %"),
        "ece": ("ECE", "{:.2f} %"),
        "uce": ("UCE", "{:.2f} %"),
        "nll": ("NLL", "{:.3f}"),
        "brier": ("Brier", "{:.3f}"),
        "n": ("images", "{}"),
        "seconds": ("seconds", "{:.0f}"),
    }
    shown = [(name, form.format(scores[key])) for key, (name, form) in columns.items() if key in scores]
    table = Table(*(name for name, _ in shown))
    table.add_row(*(text for _, text in shown))
    return table


def print_json(value: Any) -> None:
    """JSON alone on standard output."""
    text = json.dumps(value, ensure_ascii=False)
    # A file's name need not be UTF-8; what it has instead is written as JSON's own escape.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")


def print_rows(rows: list[dict[str, Any]], out: Path, as_json: bool, heading: str = "Method") -> None:
    """The table of many runs; exit code 1 where one of them failed."""
    from npmatch.report import method_notes, methods_table, table_text

    console = Console()
    if as_json:
        print_json({"out": str(out), "rows": rows})
    elif console.is_terminal:
        console.print(methods_table(rows, heading))
        for line in (*method_notes(rows), f"report: {out / 'report.html'}"):
            console.print(Text(line), soft_wrap=True)
    else:
        sys.stdout.write(table_text(rows, heading) + f"report: {out / 'report.html'}\n")
    if any(row["failed"] for row in rows):
        raise typer.Exit(1)


@contextmanager
def telling_of_a_stop() -> Iterator[None]:
    """Ctrl-C on many runs is one line and its own exit code."""
    from npmatch.compare import StoppedError

    try:
        yield
    except StoppedError as stopped:
        fail(str(stopped))
        raise typer.Exit(stopped.exit_code) from None
