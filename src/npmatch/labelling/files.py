"""Labels from files: which image a path names, and how a file of labels changes the run's label book."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from npmatch.data import decode_image
from npmatch.data.images import file_of
from npmatch.data.labels import LabelRow, positions_by_name, read_label_table
from npmatch.errors import NPMatchError
from npmatch.files import in_utf8
from npmatch.labelling.label_studio import read_export
from npmatch.runs.audit_record import NONE_OF_THESE, kept_error, kept_for_audits
from npmatch.runs.open import RunData
from npmatch.types import ImageSet


class ImageFinder:
    """Finds the image of a run that a path names: relative, absolute, or as in the data set."""

    def __init__(self, run: RunData) -> None:
        """The files of the images are listed on first use, because names are usually enough."""
        self.run = run
        self.position = positions_by_name(run.dataset.train)
        self.held_out = set(run.split.validation.tolist())
        self.left_out = set(run.split.left_out.tolist())
        self.audited = kept_for_audits(run.folder)

    def find(self, path: str, where: str) -> str:
        """The name in the data set, or the absolute path of an image outside it; `where` names the row in errors."""
        name = next((p for p in _spellings(path) if p in self.position), None)
        if name is None:
            name = self._find_file(path, where)
        if self.position.get(name) in self.held_out:
            raise NPMatchError(f"{where}: {path} is held out for validation, and its label is known; remove the row")
        if self.position.get(name) in self.left_out:
            raise NPMatchError(f"{where}: {path} was left out of training (see quarantine.json); remove the row")
        if name in self.audited and name not in self.run.book().labels:
            raise kept_error(where, path, self.run.folder)
        file = self.run.file(self.position[name]) if name in self.position else name
        if file is not None and name not in self.audited and (same := self.run.audited_copy(file)):
            raise kept_error(where, f"{path}, which has the content of {same},", self.run.folder)
        if file is not None and (same := self.run.why_no_label(file)):
            raise NPMatchError(f"{where}: {path} has the same content as {same}; remove the row")
        return name

    def name_of(self, file: str | Path) -> str | None:
        """The name of the training image in a file, or None if the file is not a training image."""
        return self._train_files.get(os.path.abspath(file))

    def takes_label(self, file: str | Path, name: str) -> bool:
        """Whether an image may get a label: none that is tested on, held out or left out, nor a copy of the former."""
        if self.is_test(file) or self.position.get(name) in self.held_out | self.left_out:
            return False
        return self.run.why_no_label(file) is None

    def is_test(self, file: str | Path) -> bool:
        """Whether a file is a test image."""
        return os.path.abspath(file) in self._test_files

    def _find_file(self, path: str, where: str) -> str:
        """As `find`, for a path that is not a name in the data set."""
        folders = [Path.cwd()]
        if (root := self.run.config.data.root) is not None:
            folders.append(Path(root) if Path(root).is_dir() else Path(root).parent)  # the root may be a CSV
        files = [os.path.abspath(folder / p) for p in _spellings(path) for folder in folders]
        for file in files:
            if (name := self.name_of(file)) is not None:
                return name
            if self.is_test(file):
                raise NPMatchError(f"{where}: {path} is a test image and must not be trained on; remove the row")
        outside = next((file for file in files if os.path.isfile(file)), None)
        if outside is None:
            raise NPMatchError(f"{where}: {path} is neither an image of the run's data nor a file; correct the path")
        channels, side, _ = self.run.dataset.train.images.shape
        decode_image(outside, side, channels)  # raises an error if it is not a readable image
        return outside

    @cached_property
    def _train_files(self) -> dict[str, str]:
        return _files(self.run.dataset.train)

    @cached_property
    def _test_files(self) -> dict[str, str]:
        test = self.run.dataset.test
        return {} if test is None else _files(test)


def _spellings(path: str) -> tuple[str, ...]:
    r"""What a path in a table may stand for: itself, without spaces around it, or a file whose name contains \xNN."""
    return path, path.strip(), in_utf8(path)


def _files(images: ImageSet) -> dict[str, str]:
    """Absolute path → name of all images that have files of their own."""
    files = ((file_of(images.images, position), name) for name, position in positions_by_name(images).items())
    return {os.path.abspath(file): name for file, name in files if file is not None}


@dataclass
class LabelReport:
    """The changes that a file of labels makes."""

    new: list[str] = field(default_factory=list)  # names of images that had no label
    same: list[str] = field(default_factory=list)  # names of images that have this label already
    changed: dict[str, tuple[str, str]] = field(default_factory=dict)  # in the label book: name → old label, new label
    contradicted: dict[str, tuple[str, str]] = field(default_factory=dict)  # the same, in the training set
    empty: int = 0  # number of rows without a label
    total: int = 0  # number of labels in the book afterwards


def read_label_file(file: Path) -> list[LabelRow]:
    """The rows of a CSV with the columns path,label, or of an export of Label Studio (JSON)."""
    return list(read_export(file) if file.suffix.lower() == ".json" else read_label_table(file))


def take_labels(run: RunData, rows: Iterable[LabelRow]) -> LabelReport:
    """Writes the rows that have a label into the run's label book; if one of them is invalid, none is written."""
    finder, report = ImageFinder(run), LabelReport()
    by_name: dict[str, LabelRow] = {}
    for row in rows:
        label = row.label if row.label in run.dataset.class_names else row.label.strip()
        if not label or (label == NONE_OF_THESE and label not in run.dataset.class_names):  # as in a table of an audit
            report.empty += 1
            continue
        row = LabelRow(row.where, finder.find(row.path, row.where), label)
        first = by_name.setdefault(row.path, row)
        if first.label != label:
            raise NPMatchError(f"{row.where}: {row.path} is '{label}' here and '{first.label}' in {first.where}")
    book = run.book(outside=[name for name in by_name if name not in finder.position])
    with book.exclusive():  # the report must be true of the book that is changed
        _compare(by_name, book.labels, training_labels(run), report)
        same = set(report.same)
        if changes := [row for name, row in by_name.items() if name not in same]:
            book.merge(changes)
        report.total = len(book.labels)
    return report


def _compare(
    rows: Mapping[str, LabelRow], in_book: Mapping[str, str], in_training: Mapping[str, str], report: LabelReport
) -> None:
    """Adds to the report which rows are new, which repeat a label and which change one."""
    for name, row in rows.items():
        old = in_book.get(name, in_training.get(name))
        if old is None:
            report.new.append(name)
        elif old == row.label:
            report.same.append(name)
        else:
            (report.changed if name in in_book else report.contradicted)[name] = (old, row.label)


def training_labels(run: RunData) -> dict[str, str]:
    """Name → label of the labelled images that the run was trained on."""
    train = run.dataset.train
    names = list(positions_by_name(train))
    return {names[i]: run.dataset.class_names[int(train.labels[i])] for i in run.split.labeled.tolist()}
