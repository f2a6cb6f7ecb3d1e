"""The table of many methods, for the terminal and, cell by cell, for the page."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npmatch.report.formatting import MISSING, count, decimal, duration, printable
from npmatch.report.tables import lowest
from npmatch.training.log import number

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]
TEXT_WIDTH = 160  # of table.txt: wide enough for every column


@dataclass(frozen=True)
class Column:
    """One number of every method."""

    key: str
    heading: str
    write: Callable[[Row], str]
    ranked: bool = True  # the lowest is the best


def with_spread(key: str, digits: int) -> Callable[[Row], str]:
    """`5.06 ± 0.12`, or without the deviation where there is none."""

    def cell(row: Row) -> str:
        value, spread = decimal(row.get(key), digits), decimal(row.get(f"{key}_std"), digits)
        return value if MISSING in (value, spread) else f"{value} ± {spread}"

    return cell


def share(key: str) -> Callable[[Row], str]:
    """A fraction in per cent."""
    return lambda row: MISSING if (value := number(row.get(key))) is None else f"{100 * value:.1f}"


COLUMNS = (
    Column("error", "Error, %", with_spread("error", 2)),
    Column("paper_error", "Paper, %", with_spread("paper_error", 2), ranked=False),
    Column("nll", "NLL", with_spread("nll", 3)),
    Column("ece", "ECE, %", with_spread("ece", 1)),
    Column("uce", "UCE, %", with_spread("uce", 1)),
    Column("trusted", "Trusted, %", share("trusted"), ranked=False),
    Column("pseudo_accuracy", "Right, %", share("pseudo_accuracy"), ranked=False),
    Column("iterations", "Steps", lambda row: count(row.get("iterations")), ranked=False),
    Column("seconds", "Time", lambda row: duration(row.get("seconds")), ranked=False),
)
WHERE_KNOWN = ("paper_error", "trusted", "pseudo_accuracy")


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that say something of these rows."""
    silent = {key for key in WHERE_KNOWN if all(row.get(key) is None for row in rows)}
    if len({row.get("iterations") for row in rows}) == 1:
        silent.add("iterations")
    return [column for column in COLUMNS if column.key not in silent]


def best(rows: Sequence[Row], shown: Sequence[Column]) -> list[int | None]:
    """For each column the row to stress."""
    found = lowest(rows, [column.key for column in shown if column.ranked])
    return [found.get(column.key) for column in shown]


def methods_table(rows: Sequence[Row], heading: str = "Method") -> Table:
    """One row per method for the terminal; the lowest number of a column is bold."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = columns(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(printable(heading)), overflow="fold")
    for column in shown:
        table.add_column(column.heading, justify="right")
    stressed = best(rows, shown)
    for i, row in enumerate(rows):
        cells = [Text(c.write(row), style="bold" if stressed[k] == i else "") for k, c in enumerate(shown)]
        table.add_row(Text(printable(row["method"])), *cells)
    return table


def method_notes(rows: Sequence[Row]) -> list[str]:
    """`name: note`, of the methods that have one."""
    return [printable(f"{row['method']}: {row['note']}") for row in rows if row["note"]]


def table_text(rows: Sequence[Row], heading: str = "Method") -> str:
    """The table and its notes as plain text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=TEXT_WIDTH, color_system=None, record=True)
    console.print(methods_table(rows, heading))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    return "\n".join([*lines, *method_notes(rows)]).strip("\n") + "\n"
