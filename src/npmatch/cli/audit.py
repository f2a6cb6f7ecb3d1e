"""`audit` measures a model's error: it draws images for people to label, and reads their answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npmatch.cli.shared import (
    DeviceOption,
    JsonOption,
    OverwriteOption,
    RunArgument,
    RunDataOption,
    check_device,
    print_json,
    print_line,
    print_warning,
)
from npmatch.errors import NPMatchError, escaped

if TYPE_CHECKING:
    from npmatch.report.audited import EstimatedError
    from npmatch.runs.audit_result import AuditResult

# The same as in npmatch.labelling.audit, which imports torch: --help does without it.
COUNT, LEVEL = 60, 0.9


def audit(
    run: RunArgument,
    tables: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]", help="Tables that were filled in, or JSON exports of Label Studio."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", help=f"Number of images to draw; default: {COUNT}.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="FILE.csv to write, with a column for the labels.")
    ] = None,
    label_studio: Annotated[
        Path | None, typer.Option("--label-studio", help="FILE.json to write, with tasks for Label Studio.")
    ] = None,
    unlabeled: Annotated[
        Path | None,
        typer.Option("--unlabeled", help="Folder of images to draw from; default: the run's unlabelled images."),
    ] = None,
    weighted: Annotated[
        bool,
        typer.Option("--weighted", help="Draw doubtful images more often: a better estimate, but a wider interval."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draws; another one begins another audit.")] = 0,
    level: Annotated[
        float, typer.Option("--level", help="Probability with which the interval contains the error.")
    ] = LEVEL,
    interim: Annotated[
        bool, typer.Option("--interim", help="Look before the end: leave half of 1 − level for later looks.")
    ] = False,
    abstain: Annotated[
        float | None,
        typer.Option("--abstain", help="Also measure the answers that predict --abstain keeps at this error rate."),
    ] = None,
    release: Annotated[
        Path | None, typer.Option("--release", help="Table whose images may be trained on from now on.")
    ] = None,
    overwrite: OverwriteOption = False,
    data: RunDataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the error on unlabelled images.

    Draws images at random to label (-n, -o); given the filled-in table, prints the model's error with an interval.
    Without either, shows what the answers so far have measured. Audited images are kept out of training.
    """
    tables = tables or []
    writes = out is not None or label_studio is not None
    if sum((writes, bool(tables), release is not None)) > 1:
        raise NPMatchError("audit: draw images (-o), read a filled-in FILE, or --release one; one at a time")
    if count is not None and not writes:
        raise NPMatchError(f"audit: {count} images to draw, but no file to write them to; give -o FILE.csv")
    if count is not None and count < 1:
        raise NPMatchError(f"-n {count}: draw 1 image or more")
    if release is not None:
        release_images(run, release, data, as_json)
    elif writes:
        files = [(out, ".csv"), (label_studio, ".json")]
        for file, ending in files:
            if file is not None and file.suffix.lower() != ending:
                raise NPMatchError(f"{file}: give a name that ends in {ending}")
        draw_images(
            run, count, out, label_studio, unlabeled, weighted, seed, overwrite, data, check_device(device), as_json
        )
    else:
        show_error(run, tables, level, interim, abstain, data, check_device(device), as_json)


def draw_images(
    run: Path,
    count: int | None,
    out: Path | None,
    label_studio: Path | None,
    unlabeled: Path | None,
    weighted: bool,
    seed: int,
    overwrite: bool,
    data: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Draw images, write them as a table or as tasks, and store the draws beside the run."""
    from npmatch.labelling.audit import Auditor, list_in_data, pending_rows
    from npmatch.labelling.tables import has_no_label, interface_of, write_empty_table, write_images_as_tasks
    from npmatch.runs.audit_record import NONE_OF_THESE, exclusive
    from npmatch.runs.outputs import check_output

    if out is not None:
        check_output(out, overwrite, may_replace=has_no_label)
    for file in () if label_studio is None else (label_studio, interface_of(label_studio)):
        check_output(file, overwrite)
    auditor = Auditor(run, unlabeled, data, device)
    written: dict[str, str] = {}
    with exclusive(run) as record:
        audit, pool = auditor.draw(record, count, weighted, seed)
        rows = pending_rows(audit, pool, last_batch=count is not None)
        # The table before the record: after a crash in between, the same call draws the same images again.
        if out is not None:
            write_empty_table([(path, "", reason) for _, path, reason in rows], out)
            written["out"] = str(out)
        if label_studio is not None:
            no_proposal: dict[str, object] = {}  # which would sway the person who labels
            tasks = [(*row, no_proposal) for row in rows]
            choices = [*auditor.classifier.class_names, NONE_OF_THESE]
            interface, root = write_images_as_tasks(tasks, pool.images, choices, label_studio)
            written |= {"label_studio": str(label_studio), "interface": str(interface)}
            written |= {} if root is None else {"document_root": str(root)}
        record.save(run)
        problem = list_in_data(run, audit, data)
    for warning in (*(f"skipped {line}" for line in pool.problems), *([problem] if problem else [])):
        print_warning(warning)
    if as_json:
        facts = {"audit": audit.id, "images": audit.images, "weighted": weighted, "drawn": len(audit.draws)}
        print_json({**written, **facts, "rows": [{"path": path, "reason": reason} for _, path, reason in rows]})
    else:
        print_line(f"{len(rows)} of {audit.images:,} images, drawn {'by doubt' if weighted else 'at random'}")
        for what, where in written.items():
            print_line(f"{what.replace('_', ' ')}: {where}")
        print_line(f"fill in the labels ('{NONE_OF_THESE}' for an image of no class), then: npmatch audit {run} FILE")
    if pool.problems:
        raise typer.Exit(1)


def release_images(run: Path, table: Path, data: Path | None, as_json: bool) -> None:
    """Let the images of a table be trained on."""
    from npmatch.labelling.audit import list_in_data
    from npmatch.labelling.audit_answers import release
    from npmatch.labelling.files import read_label_file
    from npmatch.runs.audit_record import exclusive

    rows = read_label_file(table)
    with exclusive(run) as record:
        audits = release(record, rows, run)
        record.save(run)
        problems = [list_in_data(run, audit, data) for audit in audits]
    for problem in filter(None, problems):
        print_warning(problem)
    if as_json:
        print_json({"released": len(rows)})
    else:
        print_line(f"{table}: {len(rows)} images may be trained on; take their labels: npmatch label {run} {table}")


def show_error(
    run: Path,
    tables: Sequence[Path] = (),
    level: float = LEVEL,
    interim: bool = False,
    abstain: float | None = None,
    data: Path | None = None,
    device: str | None = None,
    as_json: bool = False,
) -> None:
    """Read filled-in tables, and print the error they give; without a table, what the answers so far have measured."""
    from npmatch.labelling.audit_answers import look_at_answers, read_answers
    from npmatch.runs.audit_result import results_of
    from npmatch.runs.estimate import estimate_error

    if tables:
        results = [read_answers(run, tables, level, interim, abstain)]
    else:
        look_at_answers(run, level, interim)
        results = results_of(run)
    if not results:
        print_estimate(run, estimate_error(run, data, device), as_json)
    elif as_json:
        print_json(results[0].asdict() if tables else {"audits": [result.asdict() for result in results]})
    else:
        for result in results:
            print_result(run, result)
        if interim and not results[0].weighted:
            print_line("an interim look: its interval is wider, so that later looks may follow")


def print_estimate(run: Path, estimate: EstimatedError, as_json: bool) -> None:
    """Print the error that nobody has measured."""
    if as_json:
        print_json({"audits": [], "error_estimated": estimate.error, "images": estimate.images})
    else:
        print_line(f"{run}: about {estimate.error:.1f} % error, {estimate.words}; npmatch audit {run} measures it")


def print_result(run: Path, result: AuditResult) -> None:
    """Print what an audit has measured."""
    from npmatch.runs.audit_result import CLASS_COLUMNS

    for line in result.lines(run):
        print_line(line)
    if result.classes:
        table = Table(*CLASS_COLUMNS)
        for name, *cells in result.class_rows():
            table.add_row(Text(escaped(name)), *cells)
        Console().print(table)
