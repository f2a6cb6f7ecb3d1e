"""The table of methods or runs: its columns and cells for the page, and the whole table for the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npmatch.data.long_tail import BALANCED
from npmatch.report.formatting import MISSING, count, decimal, duration, printable
from npmatch.training.log import number

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]
TEXT_WIDTH = 160  # characters in table.txt: wide enough for every column


@dataclass(frozen=True)
class Column:
    """A column: one number of every method."""

    key: str
    heading: str
    write: Callable[[Row], str]
    ranked: bool = True  # the lowest value is the best and is set in bold


def with_spread(key: str, digits: int) -> Callable[[Row], str]:
    """Formats a mean with its deviation, `5.06 ± 0.12`, or the mean alone where there is no deviation."""

    def cell(row: Row) -> str:
        value, spread = decimal(row.get(key), digits), decimal(row.get(f"{key}_std"), digits)
        return value if MISSING in (value, spread) else f"{value} ± {spread}"

    return cell


def share(key: str) -> Callable[[Row], str]:
    """Formats a fraction in per cent."""
    return lambda row: MISSING if (value := number(row.get(key))) is None else f"{100 * value:.1f}"


COLUMNS = (
    Column("error", "Error, %", with_spread("error", 2)),
    Column("balanced_error", "Balanced, %", with_spread("balanced_error", 2)),
    Column("geometric_accuracy", "G-mean, %", with_spread("geometric_accuracy", 2), ranked=False),
    Column("paper_error", "Paper, %", with_spread("paper_error", 2), ranked=False),
    Column("nll", "NLL", with_spread("nll", 3)),
    Column("ece", "ECE, %", with_spread("ece", 1)),
    Column("uce", "UCE, %", with_spread("uce", 1)),
    Column("outlier_auroc", "Outlier AUROC, %", with_spread("outlier_auroc", 1), ranked=False),
    Column("trusted", "Trusted, %", share("trusted"), ranked=False),
    Column("pseudo_accuracy", "Right, %", share("pseudo_accuracy"), ranked=False),
    Column("iterations", "Steps", lambda row: count(row.get("iterations")), ranked=False),
    Column("seconds", "Time", lambda row: duration(row.get("seconds")), ranked=False),
)
WHERE_KNOWN = ("paper_error", "outlier_auroc", "trusted", "pseudo_accuracy")


PER_CLASS = ("balanced_error", "geometric_accuracy")  # means over classes, which tell little about balanced data


def is_uneven(scores: Row) -> bool:
    """Whether classes differ so much in labels or test images that means over classes belong beside the error."""
    return (number(scores.get("class_ratio")) or 1) > BALANCED


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns worth showing: those with a value in some row, and the steps where trained methods differ in them."""
    silent = {key for key in WHERE_KNOWN if all(row.get(key) is None for row in rows)}
    if not any(is_uneven(row) for row in rows):
        silent |= {*PER_CLASS}
    if len({row.get("iterations") for row in rows} - {None}) < 2:
        silent.add("iterations")
    return [column for column in COLUMNS if column.key not in silent]


@dataclass(frozen=True)
class Line:
    """One row of a table, formatted."""

    name: str
    cells: Sequence[str]
    stressed: Sequence[int] = ()  # positions of the cells in bold
    note: str = ""  # below the name


def lines(rows: Sequence[Row], shown: Sequence[Column]) -> list[Line]:
    """The rows formatted in the columns `shown`; the lowest number of a ranked column is in bold."""
    best = {k: lowest(rows, column.key) for k, column in enumerate(shown) if column.ranked}
    return [
        Line(row["method"], [c.write(row) for c in shown], [k for k, at in best.items() if at == i], row["note"])
        for i, row in enumerate(rows)
    ]


def lowest(rows: Sequence[Row], key: str) -> int | None:
    """The position of the lowest number of a column; None where fewer than two rows have one."""
    values = [(value, i) for i, row in enumerate(rows) if (value := number(row.get(key))) is not None]
    return min(values)[1] if len(values) > 1 else None


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
    for line in lines(rows, shown):
        # Text rather than str: a name such as "[red]" is a name, not markup.
        cells = [Text(cell, style="bold" if k in line.stressed else "") for k, cell in enumerate(line.cells)]
        table.add_row(Text(printable(line.name)), *cells)
    return table


def method_notes(rows: Sequence[Row]) -> list[str]:
    """`name: note` for each method that has a note."""
    return [printable(f"{row['method']}: {row['note']}") for row in rows if row["note"]]


def table_text(rows: Sequence[Row], heading: str = "Method") -> str:
    """The table and its notes as plain text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=TEXT_WIDTH, color_system=None, record=True)
    console.print(methods_table(rows, heading))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    return "\n".join([*lines, *method_notes(rows)]).strip("\n") + "\n"
