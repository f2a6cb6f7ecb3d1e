"""The answers that people give to the images of a folder: DATA/labels.csv, the table that `npmatch train` learns from.

A change reads the file first, under the lock of label files, and changes its own rows only. Rows, columns and the
separator that a spreadsheet or somebody else has written stay, so that a page, a command and a person may work on it.
"""

from __future__ import annotations

import csv
import io
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from npmatch.data.labels import LabelRow
from npmatch.data.sources.audited import read_audited
from npmatch.data.sources.label_table import (
    BROKEN,
    LABEL_TABLE,
    NONE_OF_THESE,
    Answer,
    answer_in,
    image_in,
    read_answers,
)
from npmatch.data.sources.tables import REQUIRED_COLUMNS, find_separator, read_rows
from npmatch.errors import NPMatchError
from npmatch.files import name_as_text, write_atomically
from npmatch.runs.label_book import LabelsNotSavedError
from npmatch.runs.label_file import LabelFile

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass
class _Table:
    """A table as it was written: the mark at its start, its separator, the columns in their order, the cells."""

    mark: bytes
    separator: str
    columns: list[str]
    rows: list[dict[str, str]]

    def encode(self) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns, restval="", delimiter=self.separator)
        writer.writeheader()
        writer.writerows(self.rows)
        return self.mark + text.getvalue().encode("utf-8", "surrogateescape")


class FolderLabels:
    """DATA/labels.csv. A change is on disk when the call returns; images are named relative to the folder."""

    def __init__(self, root: Path) -> None:
        """The file need not exist."""
        self.root = root
        self.path = root / LABEL_TABLE
        self._file = LabelFile(self.path, warn=lambda line: None)
        self._answers: dict[str, Answer] = {}
        self._content: bytes | None = None  # of the file when the answers were read
        self._stamp: tuple[int, ...] | None = None  # of the file at that time
        self._lock = threading.RLock()
        self._is_exclusive = False

    @property
    def labels(self) -> dict[str, Answer]:
        """Image → what people have said about it, in the order of the file; the file is read where it has changed."""
        with self._lock:
            stamp = self._file.stamp()
            # Bytes, not stamps, are compared before a change: a clock may be too coarse to tell two changes apart.
            if self._is_exclusive or stamp != self._stamp:
                content = self._file.content()
                if content != self._content:
                    found = {} if content is None else read_answers(self.root, self.path, content)
                    self._answers = {name: answer for name, answer in found.items() if answer.is_given}
                    self._content = content
                self._stamp = stamp
            return dict(self._answers)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps all other writers out: what is read inside is still true when it is changed inside."""
        with self._lock, ExitStack() as held:
            if not self._is_exclusive:
                try:
                    held.enter_context(self._file.one_writer())
                except OSError as error:
                    self._refuse(error)
                held.callback(setattr, self, "_is_exclusive", False)
                self._is_exclusive = True
            yield

    def set(self, name: str, answer: Answer) -> None:
        """Answers for an image, or changes what was said."""
        self.change({name: answer})

    def remove(self, name: str) -> None:
        """Takes back what was said about an image."""
        self.change({name: None})

    def change(self, changes: Mapping[str, Answer | None]) -> None:
        """Changes several answers at once; None takes one back."""
        for answer in changes.values():
            check_answer(answer)
        with self.exclusive():
            table = self._read()
            self._refuse_audited(changes)
            waiting = dict(changes)
            kept = []
            for row in table.rows:
                name = image_in(row, self.root)
                if name in changes:
                    waiting.pop(name, None)
                    self._fill(row, changes[name])
                    if not any(text for column, text in row.items() if column != "path"):
                        continue  # nothing is left of what was said
                kept.append(row)
            for name, answer in waiting.items():
                if answer is not None:
                    row = {"path": name_as_text(name)}
                    self._fill(row, answer)
                    kept.append(row)
            table.rows = kept
            self._write(table)

    def _refuse_audited(self, changes: Mapping[str, Answer | None]) -> None:
        """Refuses new answers for images that are kept for an audit: training would refuse the table."""
        audited = read_audited(self.root)
        for name, answer in changes.items():
            if name in audited and answer is not None and name not in self.labels:
                raise NPMatchError(f"{name}: is kept for an audit of {audited[name]}; answer it there, or release it")

    def offer(self, images: Iterable[tuple[str, str]]) -> None:
        """Replaces the rows that nobody has answered by those of images to label, each with the reason."""
        with self.exclusive():
            table = self._read()
            table.columns += [] if "reason" in table.columns else ["reason"]
            table.rows = [row for row in table.rows if answer_in(row).is_given]
            table.rows += [{"path": name_as_text(name), "reason": reason} for name, reason in images]
            self._write(table)

    @staticmethod
    def _fill(row: dict[str, str], answer: Answer | None) -> None:
        row["label"], row["answer"] = answer or Answer()

    def _read(self) -> _Table:
        """The table in the file, an empty one if there is none."""
        content = self._file.content()
        if content is None:
            return _Table(b"", ",", list(REQUIRED_COLUMNS), [])
        read_answers(self.root, self.path, content)  # a table that contradicts itself is for people to mend
        rows = [row for _, row in read_rows(self.path, verbatim=True, content=content)]
        head = content.decode("utf-8-sig", "surrogateescape").splitlines()[0]
        separator = find_separator(head)
        columns = [name.strip() for name in next(csv.reader([head], delimiter=separator))]
        return _Table(content[:3] if content.startswith(BYTE_ORDER_MARK) else b"", separator, columns, rows)

    def _write(self, table: _Table) -> None:
        """Writes the table; the column `answer` is added once it is needed."""
        if "answer" not in table.columns:
            if any(row.get("answer") for row in table.rows):
                table.columns.append("answer")
            else:
                table.rows = [{column: row.get(column, "") for column in table.columns} for row in table.rows]
        try:
            write_atomically(self.path, table.encode())
        except OSError as error:
            self._refuse(error)

    def _refuse(self, error: OSError) -> NoReturn:
        raise LabelsNotSavedError(
            f"{self.path}: cannot be written ({error.strerror or error}); nothing was saved: free disk space or allow "
            "writing, then try again"
        ) from error


def check_answer(answer: Answer | None) -> None:
    """Refuses a class name that a table or a terminal could not show on one line."""
    if answer is not None and answer.label:
        check_class_name(answer.label)


def check_class_name(name: str) -> None:
    """Refuses a name with blanks around it, with control characters, or of more than 100 characters."""
    if not name.strip() or name != name.strip() or len(name) > 100 or not name.isprintable():
        raise NPMatchError(f"class '{name}': give a name of 1 to 100 printable characters without blanks around it")


def take_folder_labels(root: Path, rows: Iterable[LabelRow]) -> dict[str, Answer]:
    """Writes the rows that have a label into DATA/labels.csv, all or none; returns those that it did not have."""
    folder, audited = FolderLabels(root), read_audited(root)
    given: dict[str, Answer] = {}
    for row in rows:
        label = row.label.strip()
        answer = Answer("", label) if label in (NONE_OF_THESE, BROKEN) else Answer(label)
        name = image_in({"path": name_as_text(row.path)}, root)
        if not answer.is_given or not name:
            continue
        if not os.path.isfile(root / name):
            raise NPMatchError(f"{row.where}: {row.path} is no file in {root}; correct the path or remove the row")
        if name in audited:
            raise NPMatchError(f"{row.where}: {name} is kept for an audit of {audited[name]}; remove the row")
        if given.setdefault(name, answer) != answer:
            here, before = (one.label or one.set_aside for one in (answer, given[name]))
            raise NPMatchError(f"{row.where}: {name} is '{here}' here and '{before}' before")
    with folder.exclusive():
        in_table = folder.labels
        new = {name: answer for name, answer in given.items() if in_table.get(name) != answer}
        folder.change(new)
    return new
