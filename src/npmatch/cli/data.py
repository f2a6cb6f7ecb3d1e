"""`npmatch check-data`: problems in the images, as tables or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npmatch.cli.shared import JsonOption, print_json, print_line
from npmatch.errors import escaped
from npmatch.files import in_utf8

if TYPE_CHECKING:
    from npmatch.data.check.findings import DataReport, Finding

# Rows of the tables; --json has everything.
MAX_NAMES = 3  # of each kind of finding
MAX_LEFT_OUT = 20  # names of files that training would leave out
MAX_CLASSES = 30
COLOURS = {"left out": "red", "warning": "yellow", "note": ""}


def check_data(
    data: Annotated[Path, typer.Argument(metavar="DIR", help="Image folder or CSV, as for train --data.")],
    needed: Annotated[
        int, typer.Option("--labels", min=1, help="Number of labelled images every class must have.")
    ] = 1,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="Number of decoding processes, at most one per core.")
    ] = 8,
    as_json: JsonOption = False,
) -> None:
    """Find broken images, duplicates and leaks before training.

    The exit code is 1 if training would fail.
    """
    from npmatch.data.check import check_data, list_data
    from npmatch.training.display import counting

    listing = list_data(data)
    with counting("checking", len(listing.files)) as advance:
        report = check_data(listing, str(data), workers, needed, advance)
    if as_json:
        print_json(report.asdict())
    else:
        print_report(report)
    if report.faults:
        raise typer.Exit(1)


def print_report(report: DataReport) -> None:
    """Print a report as tables."""
    console = Console()
    console.print(class_table(report))
    for line in summary(report):
        print_line(line)
    if report.findings:
        console.print(finding_table(report))
    for fault in report.faults:
        console.print(Text(f"training would fail: {printable(fault)}", style="bold red"), soft_wrap=True)
    if not report.faults:
        out = f", leaving out {len(report.quarantine)} file(s)" if report.quarantine else ""
        console.print(f"training would run{out}", style="green", highlight=False)


def class_table(report: DataReport) -> Table:
    """The number of usable images of each class."""
    table = Table("class", "labelled", "test")
    for name, counts in list(report.labels.items())[:MAX_CLASSES]:
        table.add_row(Text(printable(name)), str(counts["labeled"]), str(counts["test"]))
    if len(report.labels) > MAX_CLASSES:
        table.add_row(f"… {len(report.labels) - MAX_CLASSES} more", "", "")
    return table


def summary(report: DataReport) -> list[str]:
    """One line each on the number of images, their sizes, pixel modes and file formats."""
    return [
        "images: " + ", ".join(f"{count} {part.replace('led', 'lled')}" for part, count in report.images.items()),
        *(f"{side}: {low} to {high}, median {middle}" for side, (low, middle, high) in report.sizes.items()),
        "pixels: " + ", ".join(f"{count} {mode}" for mode, count in report.modes.items()),
        "formats: " + ", ".join(f"{count} {name}" for name, count in report.formats.items()),
    ]


def finding_table(report: DataReport) -> Table:
    """The findings, the worst first, each with a few file names."""
    from npmatch.data.check.findings import KINDS

    table = Table("what", "how many", "meaning, and for example", show_lines=True)
    for finding in report.findings:
        kind = KINDS[finding.kind]
        unit = " groups" if finding.groups else ""
        shown = MAX_LEFT_OUT if kind.level == "left out" else MAX_NAMES
        names = "".join(f"\n{line}" for line in examples(finding, shown))
        table.add_row(
            Text(f"{finding.kind}\n({kind.level})", style=COLOURS[kind.level]),
            f"{len(finding.groups) or len(finding.names)}{unit}" if finding.names else "",
            Text(kind.meaning, overflow="fold").append(names, style="dim"),
        )
    return table


def examples(finding: Finding, shown: int) -> list[str]:
    """The first `shown` names; of duplicates, the first groups of names."""
    lines = [" = ".join(map(printable, group)) for group in finding.groups] or list(map(printable, finding.names))
    return lines[:shown] + ([f"… {len(lines) - shown} more, see --json"] if len(lines) > shown else [])


def printable(name: str) -> str:
    """A file name on one line of a terminal; bytes that are not UTF-8 are escaped like control characters."""
    return escaped(in_utf8(name))
