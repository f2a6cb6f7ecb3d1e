"""What people ask of a finished run: `evaluate` and `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from npmatch.cli.shared import (
    DataOption,
    DeviceOption,
    JsonOption,
    RunArgument,
    check_device,
    print_json,
    score_table,
)


def evaluate(
    run: RunArgument, data: DataOption = None, device: DeviceOption = None, as_json: JsonOption = False
) -> None:
    """Error, calibration and class-wise figures of a finished run on its test images."""
    from npmatch.experiment import evaluate_run
    from npmatch.metrics import classwise, scores

    found = evaluate_run(run, data, check_device(device))
    result = scores(found.prediction, found.held_out.labels).asdict()
    if as_json:
        print_json(result)
        return
    table = Table("class", "images", "accuracy", "uncertainty (nats)")
    for row in classwise(found.prediction, found.held_out.labels, found.card.class_names):
        table.add_row(Text(row.name), f"{row.n}", f"{row.accuracy:.1%}", f"{row.uncertainty:.3f}")
    console = Console()
    console.print(score_table(result))
    console.print(table)


def predict(
    run: RunArgument,
    paths: Annotated[list[Path], typer.Argument(metavar="PATHS...", help="Image files or folders.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="FILE.csv, .parquet or .jsonl")],
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Label, confidence and uncertainty of every image, in a table."""
    from npmatch.predict import load
    from npmatch.predict_files import predict_files

    classifier = load(run, check_device(device))
    errors = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed} images"))
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        task = progress.add_task("")
        written, problems = predict_files(classifier, paths, out, advance=lambda n: progress.advance(task, n))
    for problem in problems:
        errors.print(f"skipped {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print_json({"out": str(out), "written": written, "skipped": problems})
    else:
        skipped = f", {len(problems)} skipped" if problems else ""
        Console().print(Text(f"{out}: {written} images{skipped}"), soft_wrap=True)
    if problems:
        raise typer.Exit(1)
