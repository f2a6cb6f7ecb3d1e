"""A table of labels in a user's folder, labels.csv with the columns path and label, in place of class folders."""

from __future__ import annotations

import os
from pathlib import Path

from npmatch.data.sources.listing import ListedFile, Listing
from npmatch.data.sources.tables import read_rows
from npmatch.errors import NPMatchError
from npmatch.files import name_from_text

LABEL_TABLE = "labels.csv"


def read_given_labels(root: Path, table: Path) -> dict[str, str]:
    """Name of an image, relative to `root` if it lies below → its label in a table, empty where nobody gave one."""
    given: dict[str, str] = {}
    for line, cells in read_rows(table, verbatim=True):
        path, label = name_from_text(cells["path"].strip()), cells["label"].strip()
        if not path:
            raise NPMatchError(f"{table}, line {line}: no path")
        file = os.path.normpath(os.path.join(os.path.abspath(root), path))
        below = os.path.relpath(file, os.path.abspath(root))
        name = (file if below.startswith("..") else below).replace(os.sep, "/")
        if given.get(name, label) != label:
            raise NPMatchError(f"{table}, line {line}: {path} has the label '{given[name]}' too; remove one of them")
        given[name] = label
    return given


def apply_given_labels(listing: Listing, table: Path, given: dict[str, str]) -> None:
    """Gives the listed images their labels in the table; images elsewhere are added, and missing ones noted."""
    training = {file.name: place for place, file in enumerate(listing.files) if file.part != "test"}
    tests = {file.name for file in listing.files if file.part == "test"}
    added = []
    for name, label in given.items():
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
    listing.files[:0] = added
