"""The labels that people give to the images of a run: RUN/labels.csv."""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from npmatch.data.labels import LabelRow, class_index, encode_label_table, read_label_table
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.runs.folder import RunFolder


class LabelBook:
    """RUN/labels.csv. A change is on disk when the call returns, and changes by other processes are kept.

    An image is named as in the run's data set (`ImageSet.names`, relative to the data's root), by its position (`#12`)
    if it has no name there, or by an absolute path if it lies outside the data set.
    """

    def __init__(self, run: str | Path, class_names: Iterable[str], known_images: Container[str] | None = None) -> None:
        """Reads the file if it exists; if `known_images` is given, only those may get a label."""
        self.path = RunFolder(run).labels
        self.class_names = tuple(class_names)
        self.known_images = known_images
        self._labels: dict[str, str] = {}
        self._last_stamp: tuple[int, int, int] | None = None  # of the file when it was last read or written
        self._lock = threading.RLock()
        self._refresh()

    @property
    def labels(self) -> dict[str, str]:
        """Image → label, in the order in which images were first labelled."""
        with self._lock:
            self._refresh()
            return dict(self._labels)

    def set(self, name: str, label: str) -> None:
        """Labels an image, or changes its label."""
        self.merge([LabelRow(f"image '{name}'", name, label)])

    def merge(self, rows: Iterable[LabelRow]) -> None:
        """Adds or changes several labels at once; if one of them is invalid, none is changed."""
        rows = list(rows)
        for row in rows:
            self.check(row)
        self._change({row.path: row.label for row in rows})

    def remove(self, name: str) -> None:
        """Removes the label of an image."""
        if name not in self.labels:
            raise NPMatchError(f"image '{name}': has no label in {self.path}")
        self._change({name: None})

    def check(self, row: LabelRow) -> None:
        """Refuses an unknown class, and an image that may not get a label."""
        class_index(row.label, self.class_names, row.where)
        if self.known_images is not None and row.path not in self.known_images and row.path not in self._labels:
            raise NPMatchError(
                f"{row.where}: '{row.path}' is not an image of this run's training data; correct the path"
            )

    def _change(self, labels: Mapping[str, str | None]) -> None:
        """Sets labels, or removes those that are None, and writes the file."""
        with self._lock:
            self._refresh()
            for name, label in labels.items():
                if label is None:
                    self._labels.pop(name, None)
                else:
                    self._labels[name] = label
            write_atomically(self.path, encode_label_table(self._labels))
            self._last_stamp = self._stamp()

    def _refresh(self) -> None:
        """Reads the file again if it has changed since."""
        stamp = self._stamp()
        if stamp == self._last_stamp:
            return
        rows = list(read_label_table(self.path)) if stamp is not None else []
        for row in rows:
            if os.path.isabs(row.path):  # an image outside the data set, which was checked when it was labelled
                class_index(row.label, self.class_names, row.where)
            else:
                self.check(row)
        self._labels = {row.path: row.label for row in rows}
        self._last_stamp = stamp

    def _stamp(self) -> tuple[int, int, int] | None:
        """Inode, time and size of the file, to detect changes; None if it does not exist."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
