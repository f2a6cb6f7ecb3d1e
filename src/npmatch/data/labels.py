"""Label tables: CSV files with the columns path,label, whose labels replace those of a data set.

People add such labels after the data set was made, and `data.given_labels` names the table.
"""

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
from npmatch.data.sources.tables import REQUIRED_COLUMNS, read_rows
from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.files import name_as_text, name_from_text
from npmatch.types import Dataset, ImageSet


class LabelRow(NamedTuple):
    """One row of a label table."""

    where: str  # file and line, for error messages
    path: str
    label: str


def load_configured(config: DataConfig, listing: Listing | None = None) -> Dataset:
    """Loads the data set that a configuration names, with its foreign images and its label table.

    With `listing`, a folder or a CSV is not listed again.
    """
    dataset = load_with_foreign(config, listing)
    return dataset if config.given_labels is None else apply_label_table(dataset, Path(config.given_labels))


def image_name(images: ImageSet, position: int) -> str:
    """The name of an image: its file name, or `#` and its position for images without file names."""
    return images.names[position] if images.names else f"#{position}"


def positions_by_name(images: ImageSet) -> dict[str, int]:
    """The position of every image by its name."""
    return {image_name(images, position): position for position in range(len(images))}


def read_label_table(table: Path, content: bytes | None = None) -> Iterator[LabelRow]:
    """The rows of a label table; spaces, quotes, newlines and a leading = in a name are kept.

    With `content`, the bytes of the table, the file is not read again.
    """
    for line, cells in read_rows(table, verbatim=True, content=content):
        yield LabelRow(f"{table}, line {line}", name_from_text(cells["path"]), cells["label"])


def encode_label_table(labels: Mapping[str, str]) -> bytes:
    """The content of the label table that `read_label_table` reads; `labels` maps image names to class names."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerows([REQUIRED_COLUMNS, *((name_as_text(name), label) for name, label in labels.items())])
    return text.getvalue().encode()


def class_index(label: str, class_names: tuple[str, ...], where: str) -> int:
    """The index of class `label`; an unknown class is an error that begins with `where`."""
    if label not in class_names:
        unknown = NoSuchChoiceError("class", label, list(class_names))
        raise NPMatchError(f"{where}: {unknown} (a new class needs a new run, without --resume-from)")
    return class_names.index(label)


def apply_label_table(dataset: Dataset, table: Path) -> Dataset:
    """Replaces labels of the training set by those of a table; images named by other absolute paths are appended."""
    positions, labels = positions_by_name(dataset.train), dataset.train.labels.clone()
    outside: dict[str, int] = {}
    for row in read_label_table(table):
        label = class_index(row.label, dataset.class_names, row.where)
        if row.path in positions:
            labels[positions[row.path]] = label
        elif os.path.isabs(row.path):
            outside[row.path] = label
        else:
            raise NPMatchError(f"{row.where}: the data has no image '{row.path}'; use the data the label was given for")
    train = replace(dataset.train, labels=labels)
    return replace(dataset, train=_append_files(train, outside) if outside else train)


def _append_files(train: ImageSet, files: Mapping[str, int]) -> ImageSet:
    """Appends files from other folders, given with their labels, to a training set."""
    channels, side, _ = train.images.shape
    return ImageSet(
        JoinedImages(train.images, FileImages(list(files), side, channels)),
        torch.cat([train.labels, torch.tensor(list(files.values()), dtype=torch.int64)]),
        [*positions_by_name(train), *files],
    )
