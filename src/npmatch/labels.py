"""The labels people give to the images of a run: RUN/labels.csv, and what is still without one."""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from npmatch.config import Config, read_config_of_run
from npmatch.data import ImageStore, Split, load_configured
from npmatch.data.given import (
    GivenLabel,
    class_number,
    file_of,
    given_as_csv,
    image_name,
    positions_by_name,
    read_given,
)
from npmatch.data.subset import SelectedImages
from npmatch.files import write_atomically
from npmatch.types import Dataset, NPMatchError

BOOK = "labels.csv"


class LabelBook:
    """RUN/labels.csv. A change is on the disk when the call returns; what another process wrote there is kept.

    Images are called as in the run's data set (`ImageSet.names`, relative to the data's root), `#12` where they have no
    names, or by an absolute path where they lie outside of it.
    """

    def __init__(self, run: str | Path, class_names: Iterable[str], known_images: Container[str] | None = None) -> None:
        """Reads what is there; with `known_images` given, no other may get a label."""
        self.path = Path(run) / BOOK
        self.class_names = tuple(class_names)
        self.known_images = known_images
        self._labels: dict[str, str] = {}
        self._seen: tuple[int, int, int] | None = None  # the file as it was when last read or written
        self._lock = threading.RLock()
        self._refresh()

    @property
    def labels(self) -> dict[str, str]:
        """Image → label, in the order they were first given."""
        with self._lock:
            self._refresh()
            return dict(self._labels)

    def set(self, name: str, label: str) -> None:
        """Labels an image, or changes its label."""
        self.merge([GivenLabel(f"image '{name}'", name, label)])

    def merge(self, rows: Iterable[GivenLabel]) -> None:
        """Takes many labels as one change: all of them, or none where one does not fit."""
        rows = list(rows)
        for row in rows:
            self.check(row)
        self._change({row.path: row.label for row in rows})

    def remove(self, name: str) -> None:
        """Takes an image's label out of the book."""
        if name not in self.labels:
            raise NPMatchError(f"image '{name}': has no label in {self.path}")
        self._change({name: None})

    def check(self, row: GivenLabel) -> None:
        """One line on what is wrong with a label, if anything is."""
        class_number(row.label, self.class_names, row.where)
        if self.known_images is not None and row.path not in self.known_images and row.path not in self._labels:
            raise NPMatchError(f"{row.where}: '{row.path}' is no image of this run's training data; correct the path")

    def save(self) -> None:
        """Writes the file, whole or not at all; every change has done so already."""
        with self._lock:
            write_atomically(self.path, given_as_csv(self._labels))
            self._seen = self._stamp()

    def _change(self, labels: Mapping[str, str | None]) -> None:
        with self._lock:
            self._refresh()
            for name, label in labels.items():
                if label is None:
                    self._labels.pop(name, None)
                else:
                    self._labels[name] = label
            self.save()

    def _refresh(self) -> None:
        """Reads the file again where it is another one than last time."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        rows = list(read_given(self.path)) if stamp is not None else []
        for row in rows:
            if os.path.isabs(row.path):  # an image outside the data, which was known when it was labelled
                class_number(row.label, self.class_names, row.where)
            else:
                self.check(row)
        self._labels = {row.path: row.label for row in rows}
        self._seen = stamp

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(frozen=True)
class UnlabeledImages:
    """Images nobody has labelled yet."""

    names: list[str]  # N, as a LabelBook calls them
    images: ImageStore  # N
    positions: Tensor  # N, int64: in the run's training set


@dataclass(frozen=True)
class RunData:
    """What a run was trained on, loaded again."""

    folder: Path
    config: Config
    dataset: Dataset
    split: Split

    def book(self, outside: Iterable[str] = ()) -> LabelBook:
        """The run's label book, for its training images less those held out, and `outside` ones (absolute paths)."""
        unused = torch.cat([self.split.validation, self.split.left_out]).tolist()
        held_out = {image_name(self.dataset.train, position) for position in unused}
        known = positions_by_name(self.dataset.train).keys() - held_out
        return LabelBook(self.folder, self.dataset.class_names, known | set(outside))

    def unlabeled(self, labels: Container[str] = ()) -> UnlabeledImages:
        """The training images without a label, those among `labels` (a book's) left out."""
        train = self.dataset.train
        without = torch.ones(len(train), dtype=torch.bool)
        without[self.split.labeled] = False
        without[self.split.validation] = False
        without[self.split.left_out] = False
        positions = [i for i in without.nonzero().flatten().tolist() if image_name(train, i) not in labels]
        index = torch.tensor(positions, dtype=torch.int64)
        return UnlabeledImages([image_name(train, i) for i in positions], SelectedImages(train.images, index), index)

    def file(self, position: int) -> Path | None:
        """The file of a training image; None where the data does not come as one file for each."""
        return file_of(self.dataset.train.images, position)


def open_run_data(run: str | Path, data: str | Path | None = None) -> RunData:
    """A run's configuration, images and split; `data` where the images have moved."""
    run = Path(run)
    if not run.is_dir():
        raise NPMatchError(f"{run}: no such run")
    if not (run / "config.yaml").is_file():
        raise NPMatchError(f"{run}: no config.yaml in it, which says what the data is; give a folder that train wrote")
    config = read_config_of_run(run)
    if data is not None:
        config = replace(config, data=replace(config.data, root=str(data)))
    dataset = load_configured(config.data)
    return RunData(run, config, dataset, Split.load(run / "split.json", dataset))
