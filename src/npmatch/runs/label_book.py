"""The labels people give to the images of a run: RUN/labels.csv, and what is still without one."""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from npmatch.data.labels import (
    LabelRow,
    class_index,
    encode_label_table,
    read_label_table,
)
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.runs.folder import RunFolder


class LabelBook:
    """RUN/labels.csv. A change is on the disk when the call returns; what another process wrote there is kept.

    Images are called as in the run's data set (`ImageSet.names`, relative to the data's root), `#12` where they have no
    names, or by an absolute path where they lie outside of it.
    """

    def __init__(self, run: str | Path, class_names: Iterable[str], known_images: Container[str] | None = None) -> None:
        """Reads what is there; with `known_images` given, no other may get a label."""
        self.path = RunFolder(run).labels
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
        self.merge([LabelRow(f"image '{name}'", name, label)])

    def merge(self, rows: Iterable[LabelRow]) -> None:
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

    def check(self, row: LabelRow) -> None:
        """One line on what is wrong with a label, if anything is."""
        class_index(row.label, self.class_names, row.where)
        if self.known_images is not None and row.path not in self.known_images and row.path not in self._labels:
            raise NPMatchError(f"{row.where}: '{row.path}' is no image of this run's training data; correct the path")

    def save(self) -> None:
        """Writes the file, whole or not at all; every change has done so already."""
        with self._lock:
            write_atomically(self.path, encode_label_table(self._labels))
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
        rows = list(read_label_table(self.path)) if stamp is not None else []
        for row in rows:
            if os.path.isabs(row.path):  # an image outside the data, which was known when it was labelled
                class_index(row.label, self.class_names, row.where)
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
