"""Options and arguments that several verbs take, and how results are printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npmatch.errors import UNPRINTABLE, NPMatchError, escaped

DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Image folder or CSV to train on; with a recipe, the folder of its data set."),
]
RunDataOption = Annotated[
    Path | None, typer.Option("--data", help="Image folder, CSV or data set of the run, if it has moved.")
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu or cuda; default: cuda if available.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist already.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="Recipe and configuration overrides, for example: digits-40 training.batch=32",
    ),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Folder for the runs, the tables and the report; default: runs/….")
]
SeedsOption = Annotated[int, typer.Option("--seeds", help="Number of seeds.")]
FirstSeedOption = Annotated[int, typer.Option("--first-seed", help="First seed; the others count up from it.")]
IterationsOption = Annotated[
    int | None, typer.Option("--budget-iterations", help="Number of training steps of each run.")
]
MinutesOption = Annotated[float | None, typer.Option("--budget-minutes", help="Training time of each run, in minutes.")]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        help="Number of runs to train at the same time; default: 1, or as many as a --cluster has room for.",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", help="ray:HOST:PORT, ray:auto or slurm:PARTITION: work on the machines of a cluster."),
]
CoresOption = Annotated[
    int | None, typer.Option("--cores", help="Cores of each job on a --cluster; default: 1, or 8 beside a GPU.")
]


def recipe_and_settings(words: list[str] | None) -> tuple[str | None, list[str]]:
    """Split `[RECIPE] [KEY=VALUE]...` into the recipe, if one is named, and the configuration overrides."""
    words = words or []
    plain = [word for word in words if "=" not in word]
    if len(plain) > 1:
        raise NPMatchError(f"one recipe at a time, not {' and '.join(plain)}; settings are written key=value")
    return (plain[0] if plain else None), [word for word in words if "=" in word]


def check_device(name: str | None) -> str | None:
    """Return the name of a device, or refuse one that is neither cpu nor cuda."""
    if name is not None and name.split(":")[0] not in ("cpu", "cuda"):
        raise NPMatchError(f"--device {name}: choose cpu or cuda")
    return name


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    # json.dumps escapes control characters below 32 only; the others are escaped as \\uNNNN, which is JSON as well.
    text = UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
    # A file name may hold bytes that are not UTF-8; they are written as JSON's own escapes.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")


def print_line(line: str) -> None:
    """Print one line, neither wrapped nor read as markup; control characters in it are escaped."""
    Console().print(Text(escaped(line)), soft_wrap=True)


def print_warning(line: str) -> None:
    """Print one line on standard error, in yellow."""
    Console(stderr=True).print(Text(escaped(line), style="yellow"), soft_wrap=True)


def score_table(scores: dict[str, Any]) -> Table:
    """Error, calibration error and proper scores as a table of one row; means over classes where these are uneven."""
    from npmatch.report.tables import PER_CLASS, is_uneven

    columns = {
        "error": ("error", "{:.2f} %"),
        "balanced_error": ("balanced", "{:.2f} %"),
        "geometric_accuracy": ("G-mean", "{:.2f} %"),
        "probe_error": ("linear probe", "{:.2f} %"),
        "top5_error": ("top-5 error", "{:.2f} %"),
        "ece": ("ECE", "{:.2f} %"),
        "uce": ("UCE", "{:.2f} %"),
        "nll": ("NLL", "{:.3f}"),
        "brier": ("Brier", "{:.3f}"),
        "outlier_auroc": ("outlier AUROC", "{:.2f} %"),
        "n": ("images", "{}"),
        "seconds": ("seconds", "{:.0f}"),
    }
    hidden = {"top5_error", "brier"} if is_uneven(scores) else {*PER_CLASS}  # 80 characters hold no more
    shown = [(name, form.format(scores[key])) for key, (name, form) in columns.items() if key in scores.keys() - hidden]
    table = Table(*(name for name, _ in shown))
    table.add_row(*(text for _, text in shown))
    return table


def print_rows(rows: list[dict[str, Any]], out: Path, as_json: bool, heading: str = "Method") -> None:
    """Print the table of a comparison; exit code 1 if one of its runs failed."""
    from npmatch.report import method_notes, methods_table, table_text

    console = Console()
    if as_json:
        print_json({"out": str(out), "rows": rows})
    elif console.is_terminal:
        console.print(methods_table(rows, heading))
        for line in (*method_notes(rows), f"report: {out / 'report.html'}"):
            print_line(line)
    else:
        sys.stdout.write(table_text(rows, heading) + f"report: {out / 'report.html'}\n")
    if any(row["failed"] for row in rows):
        raise typer.Exit(1)
