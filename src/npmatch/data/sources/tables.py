"""Images listed in a CSV file with the columns path, label (empty if unlabelled) and optionally split."""

from __future__ import annotations

import csv
import io
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


def read_rows(
    table: Path, verbatim: bool = False, optional: str = "", content: bytes | None = None
) -> Iterator[TableRow]:
    """All rows but empty lines; the columns path and label are required, error messages mention `optional` ones.

    `verbatim` keeps spaces before a cell, and keeps bytes that are not UTF-8 as Python has them in file names. With
    `content`, the bytes of the table, the file is not read again.
    """
    content = read_bytes(table) if content is None else content
    rows = _parse(table, _decode(table, content, "surrogateescape" if verbatim else "strict"), verbatim)
    columns = [name.strip() for name in next(rows, (1, []))[1]]
    _check_columns(table, columns, optional)
    for line, cells in rows:
        if any(cells[len(columns) :]):
            raise NPMatchError(
                f"{table}, line {line}: {len(cells)} cells for {len(columns)} columns; put quotes around a cell that "
                "contains the separator"
            )
        row = dict.fromkeys(columns, "") | dict(zip(columns, cells, strict=False))
        if "\0" in row["path"]:
            raise NPMatchError(f"{table}, line {line}: the path contains a NUL character; the file may be damaged")
        if cells:
            yield TableRow(line, row)


def read_bytes(table: Path) -> bytes:
    """The bytes of a file or a pipe."""
    try:
        return table.read_bytes()
    except OSError as error:
        raise NPMatchError(f"{table}: cannot be read ({error.strerror or error})") from error


def _decode(table: Path, content: bytes, errors: str) -> str:
    """The text of a table; a byte-order mark is skipped."""
    try:
        return content.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise NPMatchError(
            f"{table}, line {line}: not a CSV file in UTF-8 ({error.reason}); save it again in this format"
        ) from error


def _parse(table: Path, text: str, verbatim: bool) -> Iterator[tuple[int, list[str]]]:
    """The cells of every row, and the line on which it begins; an unclosed quote must not swallow the rows after it."""
    lines = io.StringIO(text, newline="")
    separator = find_separator(lines.readline())
    lines.seek(0)
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=not verbatim, strict=True)
    while True:
        first_line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise NPMatchError(
                f"{table}, line {first_line}: not valid CSV ({error}); close every quote, and double those in a cell"
            ) from error
        yield first_line, cells


def _check_columns(table: Path, columns: list[str], optional: str) -> None:
    """Refuses a first line that does not name the required columns, or names one of those that are used twice."""
    if not set(REQUIRED_COLUMNS) <= set(columns):
        actual = ",".join(columns) or "(none)"
        more = f" and optionally {optional}" if optional else ""
        raise NPMatchError(f"{table}: the first line names the columns {actual}; it must name path,label{more}")
    for name in (*REQUIRED_COLUMNS, optional):
        if columns.count(name) > 1:
            raise NPMatchError(f"{table}: the first line names the column {name} twice; remove one of them")


def find_separator(first_line: str) -> str:
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
        if "\n" in label or "\r" in label:
            raise NPMatchError(f"{table}, line {line}: the label goes over several lines; close its quote")
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
