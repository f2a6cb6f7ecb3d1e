"""Verbs for a finished run: `evaluate`, `calibrate`, `predict` and `report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from npmatch.cli.audit import show_error
from npmatch.cli.shared import (
    ClusterOption,
    CoresOption,
    DeviceOption,
    JsonOption,
    OverwriteOption,
    RunArgument,
    RunDataOption,
    check_device,
    print_json,
    print_line,
    print_warning,
    score_table,
)
from npmatch.errors import NPMatchError, escaped

# The same as in npmatch.decide, which imports torch: --help does without it.
CONFIDENCE, QUANTILE = 0.9, 0.99
FLAGS = {"withheld": "withheld", "ood": "unlike any seen"}  # column of the table → words of the summary


def evaluate(
    run: RunArgument,
    data: RunDataOption = None,
    device: DeviceOption = None,
    process: Annotated[
        bool,
        typer.Option("--process", help="Show what the neural process's context contributes, part by part (NP-Match)."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure error and calibration of a finished run.

    Uses the run's test images, or the labels it held out if there are none; shows the scores of every class. Without
    either, shows what audits have measured, or what the model's confidence on unlabelled images suggests.
    """
    if process:
        show_process(run, data, check_device(device), as_json)
        return
    from npmatch.distributed.ranks import is_rank_zero
    from npmatch.metrics import classwise, scores
    from npmatch.report.formatting import MISSING
    from npmatch.runs.evaluate import NoTestImagesError, evaluate_run
    from npmatch.runs.folder import RunFolder

    try:
        found = evaluate_run(run, data, check_device(device))
    except NoTestImagesError:
        if is_rank_zero():
            show_error(run, data=data, device=check_device(device), as_json=as_json)
        return
    if not is_rank_zero():
        return
    result = found.scores
    calibrated = found.calibrated and scores(found.calibrated, found.held_out.labels).asdict()
    rows = classwise(found.prediction, found.held_out.labels, found.spec.class_names)
    if as_json:
        after = {"calibrated": {"temperature": found.temperature, **calibrated}} if calibrated else {}
        print_json({**result, **after, "classes": [row.asdict() for row in rows]})
        return
    table = Table("class", "images", "accuracy", "uncertainty (nats)")
    for row in rows:
        figures = (f"{row.accuracy:.1%}", f"{row.uncertainty:.3f}") if row.n else (MISSING, MISSING)
        table.add_row(Text(escaped(row.name)), f"{row.n}", *figures)
    console = Console()
    ratio = {"class_ratio": RunFolder(run).final_scores().get("class_ratio")}
    console.print(score_table({**result, **ratio}))
    if calibrated:
        console.print(Text(f"calibrated on {found.num_held_out} held-out labels, temperature {found.temperature:.2f}:"))
        console.print(score_table({**calibrated, **ratio}))
    console.print(table)


def show_process(run: Path, data: Path | None, device: str | None, as_json: bool) -> None:
    """Prints how the predictions change with the context of the neural process."""
    from dataclasses import asdict

    from npmatch.runs.process import ablate_context

    rows = ablate_context(run, data, device)
    if as_json:
        print_json({"process": [asdict(row) for row in rows]})
        return
    table = Table("context", "error", "NLL", "UCE", "mutual information (nats)")
    for row in rows:
        table.add_row(row.change, f"{row.error:.2f} %", f"{row.nll:.3f}", f"{row.uce:.2f} %", f"{row.information:.4f}")
    Console().print(table)


def calibrate(
    run: RunArgument,
    labeled: Annotated[
        Path | None,
        typer.Option(
            "--labeled",
            help="Labelled images the run has not seen, to use instead of the labels it held out: DIR/<class>/*, or a "
            "CSV with the columns path,label.",
        ),
    ] = None,
    data: RunDataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Calibrate a finished run on labels it has not seen.

    Fits the temperature, and what predict --abstain, --coverage and --ood need.
    """
    from npmatch.runs.calibrate import calibrate_run
    from npmatch.runs.folder import RunFolder

    found = calibrate_run(run, labeled, data, check_device(device))
    if as_json:
        print_json({"run": str(run), **found.summary()})
        return
    lacking = "no temperature, for lack of labels: give some with --labeled DIR"
    temperature = lacking if found.temperature is None else f"T = {found.temperature:.3f}"
    for line in (f"{run}: {found.n} held-out labels, {temperature}", f"written: {RunFolder(run).calibration}"):
        print_line(line)


def predict(
    run: RunArgument,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATHS...", help="Image files, folders, or quoted patterns such as 'x/**/*.jpg'."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="FILE.csv, FILE.parquet or FILE.jsonl to write.")],
    top_k: Annotated[int, typer.Option("--top-k", help="Number of likeliest classes to write for each image.")] = 1,
    abstain: Annotated[
        float | None,
        typer.Option(
            "--abstain",
            help="Mark predictions to withhold so that the others have at most this error rate, for example 0.05.",
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option("--confidence", help="Probability with which the --abstain bound must hold.")
    ] = CONFIDENCE,
    ood: Annotated[
        bool, typer.Option("--ood", help="Score and flag out-of-distribution images, unlike those trained on.")
    ] = False,
    ood_quantile: Annotated[
        float,
        typer.Option(
            "--ood-quantile", help="Quantile of the training images' scores above which --ood flags an image."
        ),
    ] = QUANTILE,
    coverage: Annotated[
        float | None,
        typer.Option(
            "--coverage",
            help="Add prediction sets that contain the true class with this probability, for example 0.9.",
        ),
    ] = None,
    no_calibration: Annotated[
        bool, typer.Option("--no-calibration", help="Write the model's own probabilities, without temperature scaling.")
    ] = False,
    cluster: ClusterOption = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", help="Parts of the images that a --cluster gets at a time; default: twice what it has room for."
        ),
    ] = None,
    cores: CoresOption = None,
    overwrite: OverwriteOption = False,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict label, confidence and uncertainty of images.

    Writes one row for each image. Probabilities are calibrated if the run held out labels.
    """
    from npmatch.decide import Decider, Wishes
    from npmatch.distributed.cluster import open_cluster
    from npmatch.distributed.devices import choose_device
    from npmatch.distributed.ranks import is_rank_zero, launched_by_torchrun, on_rank_zero, process_group
    from npmatch.predict.files import is_prediction_table, predict_files
    from npmatch.runs.open import load
    from npmatch.runs.outputs import check_output

    wishes = Wishes(not no_calibration, abstain, confidence, ood, ood_quantile, coverage)
    if cluster is None and (jobs or cores):
        raise NPMatchError("--jobs and --cores are for --cluster; without it, one process uses all cores")
    if cluster is not None and launched_by_torchrun():
        raise NPMatchError("--cluster finds machines by itself; leave torchrun out")
    loads_on = check_device(device) if cluster is None else "cpu"
    errors = Console(stderr=True, quiet=not is_rank_zero())
    columns = (SpinnerColumn(), TextColumn("{task.completed} images, {task.fields[rate]}/s"))
    with process_group(choose_device(loads_on)), ExitStack() as contexts:
        on_rank_zero(lambda: check_output(out, overwrite, may_replace=is_prediction_table))
        classifier = load(run, loads_on)
        decider = Decider(classifier.calibration, wishes)
        if decider.warning and is_rank_zero():
            print_warning(decider.warning)
        machines = None
        if cluster is not None:
            folder = out.with_name(f".{out.name}.slurm")
            machines = contexts.enter_context(open_cluster(cluster, folder, jobs, check_device(device), cores))
            if machines.warning:
                print_warning(machines.warning)
        progress = contexts.enter_context(Progress(*columns, console=errors, disable=not errors.is_terminal))
        task = progress.add_task("", rate="0")

        def advance(n: int) -> None:
            progress.advance(task, n)
            progress.update(task, rate=f"{progress.tasks[0].speed or 0:.0f}")

        flagged: Counter[str] = Counter()
        written, problems = predict_files(
            classifier, paths, out, advance=advance, decider=decider, top_k=top_k, flagged=flagged, cluster=machines
        )
    if not is_rank_zero():
        return  # with code 0: torchrun kills the other ranks once one fails, and the first still has to report
    _print_summary(out, written, problems, flagged, decider.temperature, as_json)
    if problems:
        raise typer.Exit(1)


def _print_summary(
    out: Path, written: int, problems: Sequence[str], flagged: Counter[str], temperature: float | None, as_json: bool
) -> None:
    """Prints the files that were skipped, and how many predictions were written and flagged."""
    for problem in problems:
        print_warning(f"skipped {problem}")
    if as_json:
        counts = {"out": str(out), "written": written, "skipped": problems, **flagged}
        print_json({**counts, "temperature": temperature})
        return
    marked = "".join(f", {flagged[flag]} {words}" for flag, words in FLAGS.items() if flag in flagged)
    skipped = f", {len(problems)} skipped" if problems else ""
    at = "" if temperature is None else f", probabilities at temperature {temperature:.2f}"
    print_line(f"{out}: {written} images{marked}{skipped}{at}")


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs, or folders that contain them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="FILE.html to write; default: RUN/report.html, or report.html for many runs."),
    ] = None,
    overwrite: OverwriteOption = False,
    data: RunDataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an HTML report of one run, or of many side by side.

    The file needs no other file and no network.
    """
    from npmatch.compare.gather import find_runs, gather
    from npmatch.report import write_report
    from npmatch.runs.evaluate import write_report_of
    from npmatch.runs.outputs import check_output

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise NPMatchError(f"{out}: a report is an HTML file; name it FILE.html")
    found = find_runs(runs, print_warning)
    if out is not None:
        check_output(out, overwrite)
    if len(found) == 1:
        path = write_report_of(found[0], data, check_device(device), out)
    else:
        path = write_report(gather(found), out or Path("report.html"))
    if as_json:
        print_json({"report": str(path), "runs": [str(run) for run in found]})
    else:
        print_line(f"report: {path}")
