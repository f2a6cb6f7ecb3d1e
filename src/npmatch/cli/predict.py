"""What people ask of a finished run: `evaluate`, `calibrate`, `predict` and `report`."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from npmatch.cli.shared import DataOption, DeviceOption, JsonOption, RunArgument, check_device, print_json, score_table
from npmatch.errors import NPMatchError

# As in decide/, which would import torch before a verb is known.
CONFIDENCE, QUANTILE = 0.9, 0.99
FLAGS = {"withheld": "withheld", "ood": "unlike any seen"}  # columns of the table, in words


def evaluate(
    run: RunArgument, data: DataOption = None, device: DeviceOption = None, as_json: JsonOption = False
) -> None:
    """Error, calibration and class-wise figures of a finished run on its test images."""
    from npmatch.distributed.ranks import is_first
    from npmatch.metrics import classwise, scores
    from npmatch.report.formatting import MISSING
    from npmatch.runs.evaluate import evaluate_run

    found = evaluate_run(run, data, check_device(device))
    if not is_first():
        return
    result = found.scores
    calibrated = found.calibrated and scores(found.calibrated, found.held_out.labels).asdict()
    rows = classwise(found.prediction, found.held_out.labels, found.card.class_names)
    if as_json:
        after = {"calibrated": {"temperature": found.temperature, **calibrated}} if calibrated else {}
        print_json({**result, **after, "classes": [row.asdict() for row in rows]})
        return
    table = Table("class", "images", "accuracy", "uncertainty (nats)")
    for row in rows:
        figures = (f"{row.accuracy:.1%}", f"{row.uncertainty:.3f}") if row.n else (MISSING, MISSING)
        table.add_row(Text(row.name), f"{row.n}", *figures)
    console = Console()
    console.print(score_table(result))
    if calibrated:
        console.print(Text(f"calibrated on {found.num_held_out} held-out labels, temperature {found.temperature:.2f}:"))
        console.print(score_table(calibrated))
    console.print(table)


def calibrate(
    run: RunArgument,
    labeled: Annotated[
        Path | None,
        typer.Option(
            "--labeled", help="More labelled images the run has not seen: DIR/<class>/*, or a CSV path,label."
        ),
    ] = None,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit temperature, abstention and novelty scores of a finished run on labels it has not seen."""
    from npmatch.runs.calibrate import calibrate_run

    found = calibrate_run(run, labeled, data, check_device(device))
    if as_json:
        print_json({"run": str(run), **found.summary()})
        return
    console = Console()
    lacking = "no temperature, for lack of labels: give some with --labeled DIR"
    temperature = lacking if found.temperature is None else f"T = {found.temperature:.3f}"
    for line in (f"{run}: {found.n} held-out labels, {temperature}", f"written: {run / 'calibration.json'}"):
        console.print(Text(line), soft_wrap=True)


def predict(
    run: RunArgument,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATHS...", help="Image files, folders, or quoted patterns: 'x/**/*.jpg'.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="FILE.csv, .parquet or .jsonl")],
    top_k: Annotated[int, typer.Option("--top-k", help="Columns for the K likeliest classes.")] = 1,
    abstain: Annotated[
        float | None, typer.Option("--abstain", help="Mark what to withhold so that the others err less, e.g. 0.05.")
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="That --abstain keeps its word.")] = CONFIDENCE,
    ood: Annotated[bool, typer.Option("--ood", help="Score images unlike anything seen.")] = False,
    ood_quantile: Annotated[
        float, typer.Option("--ood-quantile", help="Of the training images' own scores, above which one is flagged.")
    ] = QUANTILE,
    coverage: Annotated[
        float | None, typer.Option("--coverage", help="Sets that hold the true class this often, e.g. 0.9.")
    ] = None,
    no_calibration: Annotated[
        bool, typer.Option("--no-calibration", help="The model's own probabilities, at no temperature.")
    ] = False,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Label, confidence and uncertainty of every image, in a table; calibrated where the run held out labels."""
    from npmatch.decide import Decider, Wishes
    from npmatch.distributed.devices import choose_device
    from npmatch.distributed.ranks import group, is_first
    from npmatch.predict.classifier import load
    from npmatch.predict.files import predict_files

    wishes = Wishes(not no_calibration, abstain, confidence, ood, ood_quantile, coverage)
    errors = Console(stderr=True, quiet=not is_first())
    columns = (SpinnerColumn(), TextColumn("{task.completed} images, {task.fields[rate]}/s"))
    with group(choose_device(check_device(device))), ExitStack() as shown:
        classifier = load(run, device)
        decider = Decider(classifier.calibration, wishes)
        if decider.warning:
            errors.print(decider.warning, style="yellow", markup=False, highlight=False, soft_wrap=True)
        progress = shown.enter_context(Progress(*columns, console=errors, disable=not errors.is_terminal))
        task = progress.add_task("", rate="0")

        def advance(n: int) -> None:
            progress.advance(task, n)
            progress.update(task, rate=f"{progress.tasks[0].speed or 0:.0f}")

        flagged: Counter[str] = Counter()
        written, problems = predict_files(
            classifier, paths, out, advance=advance, decider=decider, top_k=top_k, flagged=flagged
        )
    for problem in problems:
        errors.print(f"skipped {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if not is_first():  # torchrun ends all ranks where one ends badly: that is left to the one that has still to tell
        return
    if as_json:
        counts = {"out": str(out), "written": written, "skipped": problems, **flagged}
        print_json({**counts, "temperature": decider.temperature})
    else:
        marked = "".join(f", {flagged[flag]} {words}" for flag, words in FLAGS.items() if flag in flagged)
        skipped = f", {len(problems)} skipped" if problems else ""
        at = "" if decider.temperature is None else f", probabilities at temperature {decider.temperature:.2f}"
        Console().print(Text(f"{out}: {written} images{marked}{skipped}{at}"), soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Finished runs, or folders of runs.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="FILE.html; default: report.html in the run.")] = None,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """One HTML file that needs nothing else: of one run, or of many beside one another."""
    from npmatch.compare.gather import find_runs, gather
    from npmatch.report import write_comparison
    from npmatch.runs.evaluate import evaluate_run, write_run_report

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise NPMatchError(f"{out}: a report is an HTML file; name it FILE.html")
    errors = Console(stderr=True)
    found = find_runs(runs, lambda line: errors.print(Text(line, style="yellow"), soft_wrap=True))
    if len(found) == 1:
        path = write_run_report(found[0], evaluate_run(found[0], data, check_device(device)), path=out)
    else:
        path = write_comparison(gather(found), out or Path("report.html"))
    if as_json:
        print_json({"report": str(path), "runs": [str(run) for run in found]})
    else:
        Console().print(Text(f"report: {path}"), soft_wrap=True)
