"""Labelling on the page: the run's unlabelled images with their predictions, and the annotations people give them.

`Labelling` answers the page's requests. `Annotations` holds labels and skips and can undo each user's changes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from npmatch.data.labels import image_name, positions_by_name
from npmatch.errors import NPMatchError
from npmatch.report.formatting import printable
from npmatch.runs.audit_record import kept_for_audits
from npmatch.runs.open import RunData
from npmatch.types import Predictor
from npmatch.web.answer import describe_uncertainty
from npmatch.web.pool import Mask, Pool

MAX_UNDO = 1000  # changes kept for each user
MAX_USERS = 100  # users whose changes are kept
UNCHECKED = -1  # as the expected label: the current label is not compared with it

View = Literal["todo", "labelled", "skipped", "all"]


Label = TypeVar("Label")  # what a book holds for an image: the name of a class, or an answer


class Book(Protocol[Label]):
    """Where labels are kept: the run's label book, the table of a folder, or an audit."""

    @property
    def labels(self) -> dict[str, Label]:
        """Image → label."""

    def exclusive(self) -> AbstractContextManager[object]:
        """Keeps all other writers out."""

    def change(self, changes: Mapping[str, Label | None]) -> None:
        """Sets labels, or removes those that are None, all of them or none."""


class Annotation(NamedTuple, Generic[Label]):
    """What people have said about one image."""

    label: Label | None
    skipped: bool


class Change(NamedTuple, Generic[Label]):
    """One change of annotations, which can be undone."""

    before: dict[str, Annotation[Label]]  # by image
    after: dict[str, Annotation[Label]]


class Annotations(Generic[Label]):
    """Labels, which are written to the book at once, and skips, which last until the server stops."""

    def __init__(self, book: Book[Label]) -> None:
        """Starts with the labels in the book and no skips."""
        self.book = book
        self.skipped: set[str] = set()
        self._changes: OrderedDict[str, deque[Change[Label]]] = OrderedDict()  # by user, most recently active last

    def get(self, name: str) -> Annotation[Label]:
        """The annotation of an image."""
        return self._get([name])[name]

    def set(self, name: str, annotation: Annotation[Label], user: str = "") -> None:
        """Changes an image's annotation and remembers the change for `undo`."""
        self.set_many({name: annotation}, user)

    def set_many(self, annotations: Mapping[str, Annotation[Label]], user: str = "") -> None:
        """Changes the annotations of several images, which `undo` takes back together."""
        before = self._get(annotations)
        after = {name: annotation for name, annotation in annotations.items() if annotation != before[name]}
        if after:
            self._write(after)
            self._changes_by(user).append(Change({name: before[name] for name in after}, after))

    def undo(self, user: str = "") -> str | None:
        """Undoes the user's last change and returns the name of an image in it.

        What others have overwritten stays, and changes of which nothing is left are skipped.
        """
        changes = self._changes_by(user)
        with self.book.exclusive():
            while changes:
                before, after = changes[-1]
                now = self._get(after)
                last = {name: before[name] for name in after if now[name] == after[name]}
                if last:
                    self._write(last)
                changes.pop()  # after the book is written: a change that could not be undone can be undone later
                if last:
                    return next(iter(last))
        return None

    def _get(self, names: Iterable[str]) -> dict[str, Annotation[Label]]:
        labels = self.book.labels
        return {name: Annotation(labels.get(name), name in self.skipped) for name in names}

    def _write(self, annotations: Mapping[str, Annotation[Label]]) -> None:
        """Writes labels first: if that fails, nothing else has changed."""
        before = self._get(annotations)
        changes = {name: new.label for name, new in annotations.items() if new.label != before[name].label}
        if changes:
            self.book.change(changes)
        for name, annotation in annotations.items():
            (self.skipped.add if annotation.skipped else self.skipped.discard)(name)

    def _changes_by(self, user: str) -> deque[Change[Label]]:
        changes = self._changes.setdefault(user, deque(maxlen=MAX_UNDO))
        self._changes.move_to_end(user)
        if len(self._changes) > MAX_USERS:
            self._changes.popitem(last=False)
        return changes


class Labelling:
    """The page's labelling view. Images are named by their position in the training set: no path crosses the wire."""

    def __init__(self, run: RunData) -> None:
        """`run` is the run's data, opened; predictions are missing until `rank` has run."""
        self.train = run.dataset.train
        self.class_names = run.dataset.class_names
        self.pool = Pool(run.unlabeled(kept_for_audits(run.folder)).positions)
        self.book = run.book()
        self.annotations: Annotations[str] = Annotations(self.book)
        self._positions = positions_by_name(self.train)
        self._lock = Lock()  # several people may label at once

    def rank(self, predict: Predictor, stopped: Callable[[], bool]) -> None:
        """Predicts all images and orders them by uncertainty; ends early once `stopped()` is true."""
        self.pool.rank(self.train.images, predict, stopped)

    def page(self, view: View, predicted: int | None, start: int, count: int) -> dict[str, Any]:
        """`count` images of a view from rank `start` on, most uncertain first; `predicted` restricts the class."""
        shown = self._rows_in(view)
        if predicted is not None:
            shown = shown & (self.pool.label == predicted)
        page = self.pool.page(shown, start, count)
        return {
            "images": [self._describe(int(self.pool.positions[row])) for row in page.rows],
            "previous": page.previous,
            "next": page.next,
            "matching": int((shown & self.pool.is_ranked).sum()),
        }

    def mark(
        self, position: int, label: int | None, skip: bool, user: str = "", expected: int | None = UNCHECKED
    ) -> dict[str, Any]:
        """Labels an image, skips it, or removes its label (None); returns the image as it is then.

        `taken` in the result is false, and nothing changes, where the image's label is neither the `expected` nor the
        new one: somebody else has labelled it since this user loaded the page.
        """
        if position not in self.pool.row_of:
            raise NPMatchError(f"image {position}: not an unlabelled image of this run")
        if label is not None and label not in range(len(self.class_names)):
            raise NPMatchError(f"class {label}: this run has the classes 0 to {len(self.class_names) - 1}")
        name = image_name(self.train, position)
        # A skip writes nothing. For a label, nobody else may label the image between the comparison and the change.
        with self._lock, nullcontext() if skip else self.annotations.book.exclusive():
            current = self.annotations.get(name).label
            new = current if skip else self._class_name(label)
            taken = expected == UNCHECKED or current in (new, self._class_name(expected))
            if taken:
                self.annotations.set(name, Annotation(new, skip), user)
            return {"changed": [self._describe(position)], "taken": taken, "counts": self.counts()}

    def undo(self, user: str = "") -> dict[str, Any]:
        """Undoes the user's last change; `changed` holds the image, or nothing where there was nothing to undo."""
        with self._lock, self.annotations.book.exclusive():
            position = self._positions.get(self.annotations.undo(user) or "", -1)
            changed = [self._describe(position)] if position in self.pool.row_of else []
            return {"changed": changed, "counts": self.counts()}

    def counts(self) -> dict[str, int]:
        """Numbers of images: in all, predicted so far, unreadable, labelled, skipped, still to label."""
        return {
            "images": len(self.pool),
            "looked_at": self.pool.num_read,
            "unreadable": int(self.pool.is_unreadable.sum()),
            "labelled": len(self.annotations.book.labels),
            "skipped": int(self._rows_in("skipped").sum()),
            "todo": int((self._rows_in("todo") & ~self.pool.is_unreadable).sum()),
        }

    def _class_name(self, label: int | None) -> str | None:
        return None if label is None or label not in range(len(self.class_names)) else self.class_names[label]

    def _describe(self, position: int) -> dict[str, Any]:
        """One image with its prediction and its annotation."""
        row, name = self.pool.row_of[position], image_name(self.train, position)
        label, skipped = self.annotations.get(name)
        return {
            "image": position,
            "name": printable(name),
            "guess": int(self.pool.label[row]),
            "confidence": float(self.pool.confidence[row]),
            **describe_uncertainty(float(self.pool.entropy[row]), len(self.class_names)),
            "given": None if label is None else self.class_names.index(label),
            "skipped": skipped,
        }

    def _rows_in(self, view: View) -> Mask:
        """Which of the pool's images a view shows."""
        labelled, skipped = self._mask(self.annotations.book.labels), self._mask(self.annotations.skipped)
        views = {"todo": ~labelled & ~skipped, "labelled": labelled, "skipped": skipped & ~labelled}
        return views.get(view, np.ones(len(self.pool), dtype=np.bool_))

    def _mask(self, names: Iterable[str]) -> Mask:
        mask = np.zeros(len(self.pool), dtype=np.bool_)
        rows = [self.pool.row_of.get(self._positions.get(name, -1)) for name in names]
        mask[[row for row in rows if row is not None]] = True
        return mask
