"""Labels in files: which image a path means, what a file of labels would change, and the change itself."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from npmatch.data import decode_image
from npmatch.data.images import file_of
from npmatch.data.labels import LabelRow, positions_by_name, read_label_table
from npmatch.errors import NPMatchError
from npmatch.labelling.label_studio import read_export
from npmatch.runs.open import RunData
from npmatch.types import ImageSet


class ImageFinder:
    """Which image of a run a path means, however it is written."""

    def __init__(self, run: RunData) -> None:
        """A file of every image is only looked for once a path is not a name."""
        self.run = run
        self.place = positions_by_name(run.dataset.train)
        self.held_out = set(run.split.validation.tolist())
        self.left_out = set(run.split.left_out.tolist())

    def find(self, path: str, where: str) -> str:
        """The image's name in the data set, or the absolute path of one outside it."""
        name = next((p for p in (path, path.strip()) if p in self.place), None)
        if name is None:
            name = self._find_file(path, where)
        if self.place.get(name) in self.held_out:
            raise NPMatchError(f"{where}: {path} is kept for validation, where its label is known; take it out")
        if self.place.get(name) in self.left_out:
            raise NPMatchError(f"{where}: {path} was left out of training, as quarantine.json says; take it out")
        return name

    def name_of(self, file: str | Path) -> str | None:
        """The name of the training image that a file is, if it is one."""
        return self._train_files.get(os.path.abspath(file))

    def takes_label(self, file: str | Path, name: str) -> bool:
        """Whether an image may get one: those for tests and validation, and those the run leaves out, may not."""
        return not self.is_test(file) and self.place.get(name) not in self.held_out | self.left_out

    def is_test(self, file: str | Path) -> bool:
        """Whether a file is a test image."""
        return os.path.abspath(file) in self._test_files

    def _find_file(self, path: str, where: str) -> str:
        folders = [Path.cwd()]
        if (root := self.run.config.data.root) is not None:
            folders.append(Path(root) if Path(root).is_dir() else Path(root).parent)  # the folder of a table
        files = [os.path.abspath(folder / p) for p in (path, path.strip()) for folder in folders]
        for file in files:
            if (name := self.name_of(file)) is not None:
                return name
            if self.is_test(file):
                raise NPMatchError(f"{where}: {path} is a test image; training on it would spoil the test, take it out")
        outside = next((file for file in files if os.path.isfile(file)), None)
        if outside is None:
            raise NPMatchError(f"{where}: {path} is neither an image of the run's data nor a file; correct the path")
        channels, side, _ = self.run.dataset.train.images.shape
        decode_image(outside, side, channels)  # or one line on why it is no image
        return outside

    @cached_property
    def _train_files(self) -> dict[str, str]:
        return _files(self.run.dataset.train)

    @cached_property
    def _test_files(self) -> dict[str, str]:
        test = self.run.dataset.test
        return {} if test is None else _files(test)


def _files(images: ImageSet) -> dict[str, str]:
    """File → name of all images that are files."""
    found = ((file_of(images.images, position), name) for name, position in positions_by_name(images).items())
    return {os.path.abspath(file): name for file, name in found if file is not None}


@dataclass
class LabelReport:
    """What a file of labels changes."""

    new: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)  # as the book, or the training set, has it already
    changed: dict[str, tuple[str, str]] = field(default_factory=dict)  # in the book: name → old, new
    contradicted: dict[str, tuple[str, str]] = field(default_factory=dict)  # in the training set: name → old, new
    empty: int = 0  # rows without a label
    total: int = 0  # labels in the book afterwards


def read_label_file(file: Path) -> list[LabelRow]:
    """A CSV with path,label, or what Label Studio exports."""
    return list(read_export(file) if file.suffix.lower() == ".json" else read_label_table(file))


def take_labels(run: RunData, rows: Iterable[LabelRow]) -> LabelReport:
    """Writes the rows that have a label into the run's book, all of them or, where one does not fit, none."""
    finder, report = ImageFinder(run), LabelReport()
    found: dict[str, LabelRow] = {}
    for row in rows:
        label = row.label if row.label in run.dataset.class_names else row.label.strip()
        if not label:
            report.empty += 1
            continue
        row = LabelRow(row.where, finder.find(row.path, row.where), label)
        other = found.setdefault(row.path, row)
        if other.label != label:
            raise NPMatchError(f"{row.where}: {row.path} is '{label}' here and '{other.label}' in {other.where}")
    book = run.book(outside=[name for name in found if name not in finder.place])
    for row in found.values():
        book.check(row)
    before, trained = book.labels, training_labels(run)
    for name, row in found.items():
        old = before.get(name, trained.get(name))
        if old is None:
            report.new.append(name)
        elif old == row.label:
            report.same.append(name)
        else:
            (report.changed if name in before else report.contradicted)[name] = (old, row.label)
    same = set(report.same)
    if changes := [row for name, row in found.items() if name not in same]:
        book.merge(changes)
    report.total = len(book.labels)
    return report


def training_labels(run: RunData) -> dict[str, str]:
    """Name → label of the images the run was trained with as labelled ones."""
    train = run.dataset.train
    names = list(positions_by_name(train))
    return {names[i]: run.dataset.class_names[int(train.labels[i])] for i in run.split.labeled.tolist()}
