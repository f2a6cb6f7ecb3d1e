"""The labels that people give to the images of a run: RUN/labels.csv."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from npmatch.data.labels import LabelRow, class_index
from npmatch.errors import NPMatchError
from npmatch.runs.audit_record import kept_error, kept_for_audits
from npmatch.runs.folder import RunFolder
from npmatch.runs.label_file import DamagedLabelsError, LabelFile, Table
from npmatch.training.display import Display


class LabelsNotSavedError(NPMatchError):
    """A change that could not be written; the book is as it was before."""


class LabelBook:
    """RUN/labels.csv. A change is on disk when the call returns, and changes by other processes are kept.

    One process and one thread writes at a time. It reads the file first and adds its own changes, so no label that
    somebody else has given is lost. An image is named as in the run's data set (`ImageSet.names`, relative to the
    data's root), by its position (`#12`) if it has no name there, or by an absolute path if it lies outside the data.
    """

    def __init__(
        self,
        run: str | Path,
        class_names: Iterable[str],
        known_images: Container[str] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """Reads the file if it exists; if `known_images` is given, only those may get a label.

        `warn` is told if the file was damaged and has been restored; by default, standard error is.
        """
        self.run = Path(run)
        self.path = RunFolder(run).labels
        self.class_names = tuple(class_names)
        self.known_images = known_images
        self.restored: str | None = None  # a line that says so, if the file was damaged and has been restored
        self._labels: dict[str, str] = {}
        self._warn = warn or Display("", 0).warn
        self._file = LabelFile(self.path, self._tell_restored)
        self._content: bytes | None = None  # of the file when it was last read or written
        self._last_stamp: tuple[int, ...] | None = None  # of the file at that time
        self._lock = threading.RLock()
        self._is_exclusive = False
        self._refresh()

    @property
    def labels(self) -> dict[str, str]:
        """Image → label, in the order in which images were first labelled."""
        with self._lock:
            if not self._is_exclusive:
                self._refresh()
            return dict(self._labels)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps all other writers out: what is read inside is still true when it is changed inside."""
        with self._lock, ExitStack() as held:
            if not self._is_exclusive:
                try:
                    held.enter_context(self._file.one_writer())
                except OSError as error:
                    raise self._not_saved(error) from error
                # Bytes, not stamps, are compared: a clock may be too coarse to tell two changes apart.
                if self._file.content() != self._content:
                    self._take(self._file.read_or_mend())
                held.callback(setattr, self, "_is_exclusive", False)
                self._is_exclusive = True
            yield

    def set(self, name: str, label: str) -> None:
        """Labels an image, or changes its label."""
        self.merge([LabelRow(f"image '{name}'", name, label)])

    def merge(self, rows: Iterable[LabelRow]) -> None:
        """Adds or changes several labels at once; if one of them is invalid, none is changed."""
        rows = list(rows)
        with self.exclusive():
            kept = kept_for_audits(self.run)
            for row in rows:
                self.check(row)
                if row.path in kept and row.path not in self._labels:
                    raise kept_error(row.where, row.path, self.run)
            self._change({row.path: row.label for row in rows})

    def change(self, changes: Mapping[str, str | None]) -> None:
        """Sets several labels, or removes those that are None, at once; if one is invalid, none is changed."""
        with self.exclusive():
            for name, label in changes.items():
                if label is not None:
                    self.check(LabelRow(f"image '{name}'", name, label))
            self._change(changes)

    def remove(self, name: str) -> None:
        """Removes the label of an image."""
        with self.exclusive():
            if name not in self._labels:
                raise NPMatchError(f"image '{name}': has no label in {self.path}")
            self._change({name: None})

    def check(self, row: LabelRow) -> None:
        """Refuses an unknown class, and an image that may not get a label."""
        class_index(row.label, self.class_names, row.where)
        if self.known_images is not None and row.path not in self.known_images and row.path not in self._labels:
            raise NPMatchError(
                f"{row.where}: '{row.path}' is not an image of this run's training data; correct the path"
            )

    def _change(self, changes: Mapping[str, str | None]) -> None:
        """Sets labels, or removes those that are None: first on the disk, then in memory."""
        labels = {name: label for name, label in {**self._labels, **changes}.items() if label is not None}
        try:
            content = self._file.write(labels)
        except OSError as error:
            raise self._not_saved(error) from error
        self._labels, self._content, self._last_stamp = labels, content, self._file.stamp()

    def _refresh(self) -> None:
        """Reads the file again if it has changed since."""
        stamp = self._file.stamp()
        if stamp == self._last_stamp:
            return
        try:
            self._take(self._file.read())
            self._last_stamp = stamp
        except DamagedLabelsError as damage:
            try:
                with self.exclusive():  # which restores the file
                    self._last_stamp = self._file.stamp()
            except LabelsNotSavedError:
                raise damage from None

    def _take(self, table: Table) -> None:
        """Checks the rows of the file and keeps them."""
        for row in table.rows:
            if os.path.isabs(row.path):  # an image outside the data set, which was checked when it was labelled
                class_index(row.label, self.class_names, row.where)
            else:
                self.check(row)
        self._labels = {row.path: row.label for row in table.rows}
        self._content = table.content

    def _tell_restored(self, line: str) -> None:
        self.restored = line
        self._warn(line)

    def _not_saved(self, error: OSError) -> LabelsNotSavedError:
        return LabelsNotSavedError(
            f"{self.path}: cannot be written ({error.strerror or error}); nothing was saved: free disk space or allow "
            "writing, then try again"
        )
