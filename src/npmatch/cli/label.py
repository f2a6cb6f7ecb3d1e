"""What to label next, and the labels back: `suggest` and `label`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from npmatch.cli.shared import DataOption, DeviceOption, JsonOption, RunArgument, check_device, print_json
from npmatch.errors import NPMatchError


def suggest(
    run: RunArgument,
    unlabeled: Annotated[
        Path | None,
        typer.Option("--unlabeled", help="A folder of images to choose from; default: the run's own unlabelled ones."),
    ] = None,
    count: Annotated[int, typer.Option("-n", "--count", help="How many.")] = 50,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="FILE.csv with a column for the labels.")] = None,
    label_studio: Annotated[
        Path | None, typer.Option("--label-studio", help="FILE.json of tasks for Label Studio, with predictions.")
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", help="diverse (uncertain, no two alike), uncertainty or random.")
    ] = "diverse",
    seed: Annotated[int, typer.Option("--seed", help="Of --strategy random.")] = 0,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Which images to label next: those the model is unsure of, no two alike."""
    from npmatch.labelling.tables import suggest_for_run, write_table, write_tasks

    for file, ending in ((out, ".csv"), (label_studio, ".json")):
        if file is not None and file.suffix.lower() != ending:
            raise NPMatchError(f"{file}: give a name that ends in {ending}")
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
    console, errors = Console(), Console(stderr=True)
    problems = found.candidates.problems
    for problem in problems:
        errors.print(f"skipped {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print_json({**written, "suggestions": found.table(), "skipped": list(problems)})
    elif written:
        console.print(Text(f"{len(found.rows)} of {len(found.candidates.names)} images"), soft_wrap=True)
        for what, where in written.items():
            console.print(Text(f"{what.replace('_', ' ')}: {where}"), soft_wrap=True)
    else:
        for row in found.table():
            console.print(Text(f"{row['uncertainty']:.3f}  {row['path']}  {row['reason']}"), soft_wrap=True)
    if len(found.rows) < min(count, len(found.candidates.names)):
        errors.print("the other images resemble these too much to be worth a label", style="yellow", soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def label(
    run: RunArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A CSV with the columns path,label, or Label Studio's exported JSON.")
    ],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take labels back: all rows of a file, or none where one does not fit."""
    from npmatch.labelling.files import read_label_file, take_labels
    from npmatch.runs.open import open_run_data

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
    console = Console()
    for changes, what in ((report.changed, "changed"), (report.contradicted, "against the training set's label")):
        for name, (old, new) in changes.items():
            console.print(Text(f"{what}: {name}: {old} → {new}"), soft_wrap=True)
    counts = {
        "new": len(report.new),
        "changed": len(report.changed) + len(report.contradicted),
        "as before": len(report.same),
        "rows without a label": report.empty,
    }
    summary = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing in it"
    console.print(Text(f"{file}: {summary}"), soft_wrap=True)
    console.print(Text(f"{book}: {report.total} labels; go on with npmatch train --resume-from {run}"), soft_wrap=True)
