"""A table of labels in a user's folder, labels.csv with the columns path and label, in place of class folders.

A third column, `answer`, says of images without a label why they have none: training leaves these out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from npmatch.data.sources.listing import ListedFile, Listing
from npmatch.data.sources.tables import read_rows
from npmatch.errors import NPMatchError
from npmatch.files import name_from_text

LABEL_TABLE = "labels.csv"
LABEL_LOCK = f".{LABEL_TABLE}.lock"  # held by whoever writes the table


NONE_OF_THESE, BROKEN = "none of these", "broken"  # in the column `answer`; any other text there means nothing


class Answer(NamedTuple):
    """What somebody has said about an image: its class, or why it has none. One of the two texts is empty."""

    label: str = ""
    set_aside: str = ""  # NONE_OF_THESE or BROKEN

    @property
    def is_given(self) -> bool:
        """Whether anything was said."""
        return bool(self.label or self.set_aside)


def answer_in(cells: Mapping[str, str]) -> Answer:
    """The answer in a row of a table; a label wins over the column `answer`."""
    label, other = cells["label"].strip(), cells.get("answer", "").strip()
    return Answer(label, other if not label and other in (NONE_OF_THESE, BROKEN) else "")


def image_in(cells: Mapping[str, str], root: Path) -> str:
    """The name of a row's image, relative to `root` if it lies below; empty if the row has no path."""
    path = name_from_text(cells["path"].strip())
    if not path:
        return ""
    if os.path.normpath(path) == path and not os.path.isabs(path) and not path.startswith(".."):  # nearly every row
        return path.replace(os.sep, "/")
    file = os.path.normpath(os.path.join(os.path.abspath(root), path))
    below = os.path.relpath(file, os.path.abspath(root))
    return (file if below.startswith("..") else below).replace(os.sep, "/")


def read_answers(root: Path, table: Path, content: bytes | None = None) -> dict[str, Answer]:
    """Name of an image, relative to `root` if it lies below → what a table says about it, perhaps nothing yet."""
    given: dict[str, Answer] = {}
    for line, cells in read_rows(table, verbatim=True, content=content):
        name, answer = image_in(cells, root), answer_in(cells)
        if not name:
            raise NPMatchError(f"{table}, line {line}: no path")
        if given.get(name, answer) != answer:
            before = given[name].label or given[name].set_aside
            path = name_from_text(cells["path"].strip())
            raise NPMatchError(f"{table}, line {line}: {path} has the label '{before}' too; remove one of them")
        given[name] = answer
    return given


def apply_given_labels(listing: Listing, table: Path, given: Mapping[str, Answer]) -> None:
    """Gives the listed images their labels in the table, and removes those set aside.

    Images elsewhere are added, and missing ones noted.
    """
    training = {file.name: place for place, file in enumerate(listing.files) if file.part != "test"}
    tests = {file.name for file in listing.files if file.part == "test"}
    added = []
    for name, (label, set_aside) in given.items():
        if set_aside and name in training:
            listing.remark("set-aside", name)
        if not label:
            continue
        if name in tests:
            listing.faults.append(f"{table}: {name} is a test image; remove its row, or the image from test/")
        elif name in training:
            file = listing.files[training[name]]
            if file.part == "labeled" and file.label != label:
                fault = f"{name} has the label '{label}', but lies in the folder of '{file.label}'; correct one of them"
                listing.faults.append(f"{table}: {fault}")
            listing.files[training[name]] = file._replace(part="labeled", label=label)
        else:
            added.append(ListedFile(name, "labeled", label))
            if not os.path.isfile(os.path.join(listing.root, name)):
                listing.missing[name] = f"{table}: {name}: no such file; correct the path or remove the row"
    aside = set(listing.remarks.get("set-aside", ()))
    listing.files[:] = [*added, *(file for file in listing.files if file.part == "test" or file.name not in aside)]
