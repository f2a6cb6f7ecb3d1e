"""Images listed in a CSV file: `path,label`, an empty label for an unlabelled image, perhaps `split`."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from npmatch.data.folders import IMAGENET_MEAN, IMAGENET_STD, image_set
from npmatch.types import Dataset, NPMatchError


class Row(NamedTuple):
    """One line of the table."""

    line: int
    path: str  # as written: relative to the table's folder, or absolute
    label: str  # empty where unlabelled
    split: str  # train or test


def read_csv(table: Path, size: int) -> Dataset:
    """The images of `table`; classes are the labels of its training rows, sorted."""
    if not table.is_file():
        raise NPMatchError(f"{table}: no such file; it must be a CSV with the columns path,label")
    rows = list(_read_rows(table))
    _check_files(table, rows)
    parts = {split: [row for row in rows if row.split == split] for split in ("train", "test")}
    classes = sorted({row.label for row in parts["train"]} - {""})
    if len(classes) < 2:
        raise NPMatchError(f"{table}: {len(classes)} class(es) among the training rows; label images of two or more")
    number = {"": -1} | {name: label for label, name in enumerate(classes)}
    for row in parts["test"]:
        if row.label not in number or not row.label:
            raise NPMatchError(
                f"{table}, line {row.line}: test image with label '{row.label}', which no training row has"
            )
    train, test = (
        image_set(table.parent, [row.path for row in part], [number[row.label] for row in part], size)
        for part in parts.values()
    )
    return Dataset("csv", tuple(classes), train, test if len(test) else None, IMAGENET_MEAN, IMAGENET_STD)


def _read_rows(table: Path) -> Iterator[Row]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:  # "-sig": spreadsheets write a byte-order mark
            reader = csv.DictReader(file, skipinitialspace=True)
            found = [(name or "").strip() for name in reader.fieldnames or []]
            if not {"path", "label"} <= set(found):
                raise NPMatchError(
                    f"{table}: the first line names the columns {','.join(found) or '(none)'}; "
                    "wanted are path,label and optionally split"
                )
            reader.fieldnames = found
            for cells in reader:
                path, label, split = ((cells.get(name) or "").strip() for name in ("path", "label", "split"))
                if not path:
                    raise NPMatchError(f"{table}, line {reader.line_num}: no path")
                if split not in ("", "train", "test"):
                    raise NPMatchError(f"{table}, line {reader.line_num}: split '{split}'; use train or test")
                yield Row(reader.line_num, path, label, split or "train")
    except (csv.Error, UnicodeDecodeError) as error:
        raise NPMatchError(f"{table}: not a CSV file in UTF-8 ({error}); save it again as one") from error


def _check_files(table: Path, rows: list[Row]) -> None:
    """Every file is there, and none twice."""
    first_line: dict[str, int] = {}
    for row in rows:
        file = os.path.normpath(table.parent / row.path)
        if file in first_line:
            raise NPMatchError(
                f"{table}, line {row.line}: {row.path} is on line {first_line[file]} too; remove one of them"
            )
        if not os.path.isfile(file):
            raise NPMatchError(f"{table}, line {row.line}: {file}: no such file; correct the path or remove the line")
        first_line[file] = row.line
