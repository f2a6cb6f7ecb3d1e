"""Active learning: `suggest` chooses images to label next, `label` imports their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npmatch.cli.shared import (
    DeviceOption,
    JsonOption,
    OverwriteOption,
    RunDataOption,
    check_device,
    print_json,
    print_line,
    print_warning,
)
from npmatch.errors import NPMatchError


def suggest(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Folder of a finished run; leave it out for the first labels."),
    ] = None,
    unlabeled: Annotated[
        Path | None,
        typer.Option("--unlabeled", help="Folder of images to choose from; default: the run's unlabelled images."),
    ] = None,
    count: Annotated[int, typer.Option("-n", "--count", help="Number of images to suggest.")] = 50,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="FILE.csv to write, with a column for the labels.")
    ] = None,
    label_studio: Annotated[
        Path | None,
        typer.Option("--label-studio", help="FILE.json to write, with tasks and predictions for Label Studio."),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy", help="How to choose: diverse (uncertain and unlike one another), uncertainty or random."
        ),
    ] = "diverse",
    seed: Annotated[int, typer.Option("--seed", help="Seed of --strategy random.")] = 0,
    overwrite: OverwriteOption = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Image folder to label the first images of; with RUN, where its images are now."),
    ] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Suggest images to label next: uncertain and diverse.

    Without a run, --data DIR: the first images to label, typical and unlike one another, in a folder that may have no
    label yet.
    """
    if run is None:
        if data is None:
            raise NPMatchError("suggest: name a run, or give --data DIR for the first labels of a folder")
        suggest_first_labels(data, count, out, label_studio, overwrite, check_device(device), seed, as_json)
        return
    from npmatch.labelling.tables import has_no_label, interface_of, suggest_for_run, write_table, write_tasks
    from npmatch.runs.outputs import check_output

    check_endings(out, label_studio)
    if out is not None:
        check_output(out, overwrite, may_replace=has_no_label)
    for file in () if label_studio is None else (label_studio, interface_of(label_studio)):
        check_output(file, overwrite)
    found = suggest_for_run(
        run, count, strategy, unlabeled=unlabeled, data=data, device=check_device(device), seed=seed
    )
    written: dict[str, str] = {}
    if out is not None:
        write_table(found, out)
        written["out"] = str(out)
    if label_studio is not None:
        interface, root = write_tasks(found, label_studio, run.name)
        written |= {"label_studio": str(label_studio), "interface": str(interface)}
        written |= {} if root is None else {"document_root": str(root)}
    problems = found.candidates.problems
    for problem in problems:
        print_warning(f"skipped {problem}")
    if as_json:
        print_json({**written, "suggestions": found.table(), "skipped": list(problems)})
    elif written:
        print_line(f"{len(found.rows)} of {len(found.candidates.names)} images")
        for what, where in written.items():
            print_line(f"{what.replace('_', ' ')}: {where}")
    else:
        for row in found.table():
            print_line(f"{row['uncertainty']:.3f}  {row['path']}  {row['reason']}")
    if len(found.rows) < min(count, len(found.candidates.names)):
        print_warning("the other images resemble these too much to be worth a label")
    if problems:
        raise typer.Exit(1)


def check_endings(out: Path | None, label_studio: Path | None) -> None:
    """Refuse names of files that would be of another kind."""
    for file, ending in ((out, ".csv"), (label_studio, ".json")):
        if file is not None and file.suffix.lower() != ending:
            raise NPMatchError(f"{file}: give a name that ends in {ending}")


def suggest_first_labels(
    data: Path,
    count: int,
    out: Path | None,
    label_studio: Path | None,
    overwrite: bool,
    device: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Print or write the images of a folder to label first."""
    from npmatch.data.sources.label_table import LABEL_TABLE
    from npmatch.labelling.first import suggest_first, write_first_table, write_first_tasks
    from npmatch.labelling.tables import has_no_label, interface_of
    from npmatch.runs.outputs import check_output

    own_table = data / LABEL_TABLE
    check_endings(out, label_studio)
    for file in () if label_studio is None else (label_studio, interface_of(label_studio)):
        check_output(file, overwrite)
    if out is not None and out.resolve() != own_table.resolve():  # the labels in the folder's own table are kept
        check_output(out, overwrite, may_replace=has_no_label)
    found = suggest_first(data, count, device, seed, quiet=as_json)
    for problem in found.problems:
        print_warning(f"skipped {problem}")
    written: dict[str, str] = {}
    if out is not None:
        write_first_table(found, data, out)
        written["out"] = str(out)
    if label_studio is not None:
        interface, root = write_first_tasks(found, label_studio)
        written |= {"label_studio": str(label_studio), "interface": str(interface), "document_root": str(root)}
    if as_json:
        rows = [{"path": str(row.path), "coverage": row.coverage, "reason": row.reason} for row in found.rows]
        print_json({**written, "suggestions": rows, "skipped": list(found.problems)})
    elif written:
        print_line(f"{len(found.rows)} of {found.images} images")
        for what, where in written.items():
            print_line(f"{what.replace('_', ' ')}: {where}")
        if out is not None:
            print_line(f"fill in the column label, save the table as {own_table}, then: npmatch train --data {data}")
        if label_studio is not None:
            print_line(f"take the labels back with npmatch label {data} EXPORT.json, then: npmatch train --data {data}")
    else:
        for row in found.rows:
            print_line(f"{row.path}  {row.reason}")
    if found.problems:
        raise typer.Exit(1)


def label(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or of the images themselves.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV with the columns path,label, or a JSON export of Label Studio.")
    ],
    data: RunDataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import labels from a CSV or from Label Studio.

    Takes all rows of the file, or none if one of them does not fit the run. Labels of a folder of images go into its
    table, DIR/labels.csv.
    """
    from npmatch.labelling.files import read_label_file, take_labels
    from npmatch.runs.folder import RunFolder
    from npmatch.runs.open import open_run_data

    folder = RunFolder(run)
    if run.is_dir() and not folder.exists() and not folder.model_config.exists():
        label_folder(run, file, as_json)
        return
    opened = open_run_data(run, data)
    report = take_labels(opened, read_label_file(file))
    book = str(opened.book().path)
    if as_json:
        conflicts = {
            kind: [{"path": name, "old": old, "new": new} for name, (old, new) in found.items()]
            for kind, found in (("changed", report.changed), ("contradicted", report.contradicted))
        }
        numbers = {"new": len(report.new), "same": len(report.same), "empty": report.empty, "total": report.total}
        print_json({"out": book, **numbers, **conflicts})
        return
    for changes, what in ((report.changed, "changed"), (report.contradicted, "against the training set's label")):
        for name, (old, new) in changes.items():
            print_line(f"{what}: {name}: {old} → {new}")
    counts = {
        "new": len(report.new),
        "changed": len(report.changed) + len(report.contradicted),
        "as before": len(report.same),
        "rows without a label": report.empty,
    }
    summary = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing in it"
    print_line(f"{file}: {summary}")
    print_line(f"{book}: {report.total} labels; go on with npmatch train --resume-from {run}")


def label_folder(folder: Path, file: Path, as_json: bool) -> None:
    """Import labels into a folder's own table."""
    from npmatch.labelling.files import read_label_file
    from npmatch.labelling.folder_labels import FolderLabels, take_folder_labels

    new = take_folder_labels(folder, read_label_file(file))
    table = FolderLabels(folder)
    total = sum(bool(answer.label) for answer in table.labels.values())
    if as_json:
        print_json({"out": str(table.path), "new": len(new), "total": total})
        return
    print_line(f"{file}: {len(new)} new or changed")
    print_line(f"{table.path}: {total} labels; go on with npmatch train --data {folder}")
