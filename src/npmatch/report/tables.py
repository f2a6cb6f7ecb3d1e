"""The comparison of several runs, for the terminal and, cell by cell, for the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npmatch.report.formatting import MISSING, duration, percent, printable
from npmatch.training.log import number

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]  # name, error, ece, uce (all in %), seconds; `error_std` and the like are optional
HEADINGS = {"error": "Error", "ece": "ECE", "uce": "UCE", "seconds": "Time"}


def comparison_table(rows: Sequence[Row], title: str | None = None) -> Table:
    """One row per run; the lowest of each column is bold. A missing number is a dash."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title)
    table.add_column("Method")
    for heading in HEADINGS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    best = lowest(rows)
    for i, row in enumerate(rows):
        # Text rather than str: a name such as "[red]" is a name, not markup.
        cells = [Text(cell(row, key), style="bold" if best[key] == i else "") for key in HEADINGS]
        table.add_row(Text(printable(row.get("name", MISSING))), *cells)
    return table


def cell(row: Row, key: str) -> str:
    """One number of one run: `5.1 %`, `5.1 ± 0.2 %` where seeds were averaged, or a time."""
    if key == "seconds":
        return duration(row.get(key))
    spread = number(row.get(f"{key}_std"))
    value = percent(row.get(key))
    return value if spread is None or value == MISSING else value.replace(" %", f" ± {spread:.1f} %")


def lowest(rows: Sequence[Row], keys: Iterable[str] = tuple(HEADINGS)) -> dict[str, int | None]:
    """For each column the position of its lowest number; None where fewer than two runs have one."""
    best: dict[str, int | None] = {}
    for key in keys:
        values = [(value, i) for i, row in enumerate(rows) if (value := number(row.get(key))) is not None]
        best[key] = min(values)[1] if len(values) > 1 else None
    return best
