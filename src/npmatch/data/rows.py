"""The rows of a table as spreadsheets save it: columns in any order, with commas, semicolons or tabs between them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from npmatch.types import NPMatchError

SEPARATORS = ",;\t"  # where the comma stands in numbers, a spreadsheet's CSV has semicolons
WANTED = ("path", "label")


class TableRow(NamedTuple):
    """The cells of one row by their column's name; one that is missing at its end is empty."""

    line: int
    cells: dict[str, str]


def read_rows(table: Path, to_the_letter: bool = False, optional: str = "") -> Iterator[TableRow]:
    """Every row but empty lines; `optional` names, in an error, the columns there may be beside path and label.

    `to_the_letter` keeps blanks before a cell, and bytes that are not UTF-8 as Python has them in file names.
    """
    errors = "surrogateescape" if to_the_letter else "strict"
    try:
        with open(table, newline="", encoding="utf-8-sig", errors=errors) as file:  # "-sig": a byte-order mark may lead
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=_separator(first), skipinitialspace=not to_the_letter)
            columns = [name.strip() for name in next(reader, [])]
            if not set(WANTED) <= set(columns):
                found = ",".join(columns) or "(none)"
                more = f" and optionally {optional}" if optional else ""
                raise NPMatchError(f"{table}: the first line names the columns {found}; wanted are path,label{more}")
            for cells in reader:
                if cells:
                    yield TableRow(
                        reader.line_num, dict.fromkeys(columns, "") | dict(zip(columns, cells, strict=False))
                    )
    except OSError as error:
        raise NPMatchError(f"{table}: cannot be read ({error.strerror})") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise NPMatchError(f"{table}: not a CSV file in UTF-8 ({error}); save it again as one") from error


def _separator(first_line: str) -> str:
    """The one that makes the wanted columns of the first line."""
    for separator in SEPARATORS:
        columns = {name.strip() for name in next(csv.reader([first_line], delimiter=separator), [])}
        if set(WANTED) <= columns:
            return separator
    return SEPARATORS[0]
