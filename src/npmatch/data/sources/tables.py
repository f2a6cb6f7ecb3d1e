"""Images listed in a CSV file with the columns path, label (empty if unlabelled) and optionally split."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from npmatch.data.sources.listing import ListedFile, Listing, Part
from npmatch.errors import NPMatchError

SEPARATORS = ",;\t"  # spreadsheets write semicolons in countries with a decimal comma
REQUIRED_COLUMNS = ("path", "label")


class TableRow(NamedTuple):
    """The line number of a row and its cells by column name; cells missing at the end of a row are empty."""

    line: int
    cells: dict[str, str]


def read_rows(table: Path, verbatim: bool = False, optional: str = "") -> Iterator[TableRow]:
    """All rows but empty lines; the columns path and label are required, error messages mention `optional` ones.

    `verbatim` keeps spaces before a cell, and keeps bytes that are not UTF-8 as Python has them in file names.
    """
    errors = "surrogateescape" if verbatim else "strict"
    try:
        with open(table, newline="", encoding="utf-8-sig", errors=errors) as file:  # "-sig" skips a byte-order mark
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=_separator(first), skipinitialspace=not verbatim)
            columns = [name.strip() for name in next(reader, [])]
            if not set(REQUIRED_COLUMNS) <= set(columns):
                actual = ",".join(columns) or "(none)"
                more = f" and optionally {optional}" if optional else ""
                raise NPMatchError(f"{table}: the first line names the columns {actual}; it must name path,label{more}")
            for cells in reader:
                if cells:
                    yield TableRow(
                        reader.line_num, dict.fromkeys(columns, "") | dict(zip(columns, cells, strict=False))
                    )
    except OSError as error:
        raise NPMatchError(f"{table}: cannot be read ({error.strerror})") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise NPMatchError(f"{table}: not a CSV file in UTF-8 ({error}); save it again in this format") from error


def _separator(first_line: str) -> str:
    """The separator with which the first line has the required columns; a comma if none does."""
    for separator in SEPARATORS:
        columns = {name.strip() for name in next(csv.reader([first_line], delimiter=separator), [])}
        if set(REQUIRED_COLUMNS) <= columns:
            return separator
    return SEPARATORS[0]


class ImageRow(NamedTuple):
    """One image in the CSV."""

    line: int
    path: str  # as written: relative to the table's folder, or absolute
    label: str  # empty if unlabelled
    split: str  # train or test


def list_csv(table: Path) -> Listing:
    """Lists the files that `table` names; the classes are the sorted labels of its training rows.

    A table that cannot be read is an error; other faults are collected in the listing.
    """
    if table.is_dir():
        raise NPMatchError(f"{table}: a folder; name the CSV in it, with the columns path,label")
    if not table.is_file():
        raise NPMatchError(f"{table}: no such file; it must be a CSV with the columns path,label")
    rows = list(_read_image_rows(table))
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


def _read_image_rows(table: Path) -> Iterator[ImageRow]:
    for line, cells in read_rows(table, optional="split"):
        path, label, split = (cells.get(name, "").strip() for name in ("path", "label", "split"))
        if not "".join(cells.values()).strip():  # spreadsheets leave empty rows at the end
            continue
        if not path:
            raise NPMatchError(f"{table}, line {line}: no path")
        if split not in ("", "train", "test"):
            raise NPMatchError(f"{table}, line {line}: split '{split}'; use train or test")
        yield ImageRow(line, path, label, split or "train")


def _list_files(listing: Listing, table: Path, rows: list[ImageRow]) -> None:
    """Adds training files and then test files to a listing, in the order of the rows; notes missing or double ones."""
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
        fault = f"none of its {len(rows)} files exists: paths must be relative to the folder of the table, or absolute"
        listing.faults.append(f"{table}: {fault}; {next(iter(listing.missing.values()))}")
