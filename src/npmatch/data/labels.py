"""Labels that people gave after a data set was made: a table of path,label laid over the labels it has of its own."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from npmatch.data.config import DataConfig
from npmatch.data.foreign import load_with_foreign
from npmatch.data.images import FileImages, JoinedImages
from npmatch.data.sources.listing import Listing
from npmatch.data.sources.tables import WANTED, read_rows
from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.types import Dataset, ImageSet


class LabelRow(NamedTuple):
    """One image and what somebody says it is."""

    where: str  # the file and the line, for messages
    path: str
    label: str


def load_configured(config: DataConfig, listing: Listing | None = None) -> Dataset:
    """The data set a configuration names, with the labels that people have given since over its own.

    With `listing`, a folder or a CSV is taken as it was listed before.
    """
    dataset = load_with_foreign(config, listing)
    return dataset if config.given_labels is None else apply_label_table(dataset, Path(config.given_labels))


def image_name(images: ImageSet, position: int) -> str:
    """What an image is called: its file's name, or `#` and its position where images have none."""
    return images.names[position] if images.names else f"#{position}"


def positions_by_name(images: ImageSet) -> dict[str, int]:
    """Every image's name and where it is."""
    return {image_name(images, position): position for position in range(len(images))}


def read_label_table(table: Path) -> Iterator[LabelRow]:
    """The rows of a table, names to the letter: spaces, quotes, newlines and a leading = are part of them."""
    for line, cells in read_rows(table, to_the_letter=True):
        yield LabelRow(f"{table}, line {line}", cells["path"], cells["label"])


def encode_label_table(labels: Mapping[str, str]) -> bytes:
    """The table that `read_label_table` reads."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerows([WANTED, *labels.items()])
    return text.getvalue().encode(errors="surrogateescape")


def class_index(label: str, class_names: tuple[str, ...], where: str) -> int:
    """A class by its name, or one line that says where there is no such class."""
    if label not in class_names:
        unknown = NoSuchChoiceError("class", label, list(class_names))
        raise NPMatchError(f"{where}: {unknown} (a new class needs a new run, without --resume-from)")
    return class_names.index(label)


def apply_label_table(dataset: Dataset, table: Path) -> Dataset:
    """`dataset` with the labels of a table; images it does not have, named by absolute paths, join its training set."""
    place, labels, outside = positions_by_name(dataset.train), dataset.train.labels.clone(), {}
    for row in read_label_table(table):
        number = class_index(row.label, dataset.class_names, row.where)
        if row.path in place:
            labels[place[row.path]] = number
        elif os.path.isabs(row.path):
            outside[row.path] = number
        else:
            raise NPMatchError(f"{row.where}: the data has no image '{row.path}'; use the data the label was given for")
    train = replace(dataset.train, labels=labels)
    return replace(dataset, train=_with_files(train, outside) if outside else train)


def _with_files(train: ImageSet, files: Mapping[str, int]) -> ImageSet:
    """A training set with images of other folders behind its own, in the order they were labelled."""
    channels, side, _ = train.images.shape
    return ImageSet(
        JoinedImages(train.images, FileImages(list(files), side, channels)),
        torch.cat([train.labels, torch.tensor(list(files.values()), dtype=torch.int64)]),
        [*positions_by_name(train), *files],
    )
