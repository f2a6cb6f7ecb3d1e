"""Images listed in a CSV file: `path,label`, an empty label for an unlabelled image, perhaps `split`."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from npmatch.data.sources.listing import ListedFile, Listing, Part
from npmatch.errors import NPMatchError

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


class Row(NamedTuple):
    """One line of the table."""

    line: int
    path: str  # as written: relative to the table's folder, or absolute
    label: str  # empty where unlabelled
    split: str  # train or test


def list_csv(table: Path) -> Listing:
    """The files that `table` names; classes are the labels of its training rows, sorted.

    A table that cannot be read is an error, other faults are collected.
    """
    if table.is_dir():
        raise NPMatchError(f"{table}: a folder; name the CSV in it, with the columns path,label")
    if not table.is_file():
        raise NPMatchError(f"{table}: no such file; it must be a CSV with the columns path,label")
    rows = list(_read_rows(table))
    classes = sorted({row.label for row in rows if row.split == "train"} - {""})
    listing = Listing(table.parent, classes)
    if len(classes) < 2:
        fault = f"{len(classes)} class(es) among the training rows; label images of two or more"
        listing.faults.append(f"{table}: {fault}")
    for row in rows:
        if row.split == "test" and row.label not in classes:
            fault = f"test image with label '{row.label}', which no training row has"
            listing.faults.append(f"{table}, line {row.line}: {fault}")
    _list_files(listing, table, rows)
    return listing


def _read_rows(table: Path) -> Iterator[Row]:
    for line, cells in read_rows(table, optional="split"):
        path, label, split = (cells.get(name, "").strip() for name in ("path", "label", "split"))
        if not "".join(cells.values()).strip():  # spreadsheets leave such rows at the end
            continue
        if not path:
            raise NPMatchError(f"{table}, line {line}: no path")
        if split not in ("", "train", "test"):
            raise NPMatchError(f"{table}, line {line}: split '{split}'; use train or test")
        yield Row(line, path, label, split or "train")


def _list_files(listing: Listing, table: Path, rows: list[Row]) -> None:
    """Training rows in their order, then the test's; a file that is not there, and one that is there twice, is said."""
    first_line: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row.split == "test"):
        file = os.path.normpath(table.parent / row.path)
        if file in first_line:
            lines = sorted((row.line, first_line[file]))
            fault = f"{row.path} is on line {lines[0]} too; remove one of them"
            listing.faults.append(f"{table}, line {lines[1]}: {fault}")
            continue
        first_line[file] = row.line
        name = row.path.replace(os.sep, "/")
        if not os.path.isfile(file):
            fault = "no such file; correct the path or remove the line"
            listing.missing[name] = f"{table}, line {row.line}: {file}: {fault}"
        part: Part = "test" if row.split == "test" else "labeled" if row.label else "unlabeled"
        listing.files.append(ListedFile(name, part, row.label))
    if listing.files and len(listing.missing) == len(listing.files):
        paths = f"of its {len(rows)} files none is there: paths are relative to the folder of the table, or absolute"
        listing.faults.append(f"{table}: {paths}; {next(iter(listing.missing.values()))}")
