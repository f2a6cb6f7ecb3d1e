"""Labelling a folder on the page: its pictures in the order of their use, what people answer, and the classes.

Pictures are named by their number: no path crosses the wire. Classes are named by their names, because people add,
rename and merge them while others label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from npmatch.data.sources.audited import AUDITED, read_audited
from npmatch.data.sources.label_table import BROKEN, NONE_OF_THESE, Answer
from npmatch.data.sources.listing import Listing
from npmatch.errors import NPMatchError
from npmatch.files import in_utf8
from npmatch.labelling.folder_labels import FolderLabels, check_class_name
from npmatch.report.formatting import printable
from npmatch.types import Prediction
from npmatch.web.answer import describe_uncertainty
from npmatch.web.class_list import ClassList
from npmatch.web.labelling import Annotation, Annotations, View
from npmatch.web.pool import Indices, Mask, page_of
from npmatch.web.rounds import stamp_of


@dataclass(frozen=True)
class Guesses:
    """What a model thinks of all N pictures."""

    source: str  # name of the round whose model it is; empty for the quick look
    class_names: tuple[str, ...]
    label: npt.NDArray[np.int64]  # N
    confidence: npt.NDArray[np.float32]  # N
    entropy: npt.NDArray[np.float32]  # N, nats
    known: Mask  # N: whether the picture could be read

    @classmethod
    def of(cls, source: str, class_names: Sequence[str], prediction: Prediction, rows: Indices, number: int) -> Guesses:
        """The guesses for `number` pictures, of which those at `rows` were predicted."""
        found = cls(
            source,
            tuple(class_names),
            np.zeros(number, np.int64),
            np.zeros(number, np.float32),
            np.zeros(number, np.float32),
            np.zeros(number, np.bool_),
        )
        found.label[rows] = prediction.label.numpy()
        found.confidence[rows] = prediction.confidence.numpy()
        found.entropy[rows] = prediction.entropy.numpy()
        found.known[rows] = True
        return found

    def extended(self, number: int) -> Guesses:
        """The same guesses, for a folder of `number` pictures: there are none yet for those that are new."""
        more = (0, number - len(self.known))
        return Guesses(
            self.source,
            self.class_names,
            np.pad(self.label, more),
            np.pad(self.confidence, more),
            np.pad(self.entropy, more),
            np.pad(self.known, more),
        )


class Desk:
    """The labelling of one folder; several people may use it at once."""

    def __init__(self, listing: Listing, class_file: Path) -> None:
        """Lists no file again; `extend` takes in those that are added later."""
        self.names: list[str] = []
        self.paths: list[str] = []
        self.in_folders: dict[str, str] = {}  # name → class, which is not changed here
        self.book = FolderLabels(listing.root)
        self.annotations: Annotations[Answer] = Annotations(self.book)
        self.class_list = ClassList(class_file)
        self.left_out: Mask = np.zeros(0, np.bool_)  # broken files, second copies, and those in class folders
        self.gone: Mask = np.zeros(0, np.bool_)  # files that are no longer in the folder
        self.order: Indices = np.zeros(0, np.int64)  # in which pictures are offered
        self.version = 0  # changes with the order
        self.guesses: Guesses | None = None
        self._audited: tuple[object, frozenset[str]] = (None, frozenset())  # with the stamp of the file
        self._position: dict[str, int] = {}
        self._lock = RLock()  # also for readers: the number of pictures may change
        self.extend(listing)

    def extend(self, listing: Listing) -> None:
        """Takes in the pictures that are new; all others keep their numbers, and those that are gone are left out."""
        with self._lock:
            before = len(self.names)
            for file in listing.files:
                if file.name not in self._position:
                    self._position[file.name] = len(self.names)
                    self.names.append(file.name)
                    self.paths.append(listing.path(file))
            self.in_folders = {file.name: in_utf8(file.label) for file in listing.files if file.label}
            more = len(self.names) - before
            self.gone = ~self._mask(file.name for file in listing.files)
            self.left_out = np.pad(self.left_out, (0, more)) | self.gone | self._mask(self.in_folders)
            self.order = np.concatenate([self.order, np.arange(before, len(self.names), dtype=np.int64)])
            self.guesses = None if self.guesses is None else self.guesses.extended(len(self.names))
            self.version += 1

    def audited(self) -> frozenset[str]:
        """The pictures that are kept for an audit: a label of theirs would be trained on."""
        stamp = stamp_of(self.book.root / AUDITED)
        if self._audited[0] != stamp:
            self._audited = stamp, frozenset(read_audited(self.book.root))
        return self._audited[1]

    def leave_out(self, positions: Iterable[int]) -> None:
        """Never offers these pictures, nor those in class folders; all others again."""
        with self._lock:
            left_out = self.gone | self._mask(self.in_folders)
            left_out[list(positions)] = True
            self.left_out = left_out

    def offer(self, first: Sequence[int]) -> None:
        """Offers these pictures first, then the others: the most doubtful first, if there are guesses."""
        with self._lock:
            chosen = set(first)
            rest = [position for position in self._by_doubt().tolist() if position not in chosen]
            self.order = np.array([*first, *rest], dtype=np.int64)
            self.version += 1

    def _by_doubt(self) -> Indices:
        if self.guesses is None:
            return np.arange(len(self.names), dtype=np.int64)
        return np.argsort(-self.guesses.entropy, kind="stable")

    def classes(self) -> list[str]:
        """The names of all classes."""
        return self.class_list.names(self._used())

    def _used(self) -> list[str]:
        given = [answer.label for answer in self.book.labels.values() if answer.label]
        return [*sorted(set(self.in_folders.values())), *dict.fromkeys(given)]

    def labels(self) -> dict[int, str]:
        """Position → class of every labelled picture."""
        labels = {**self.in_folders, **{name: a.label for name, a in self.book.labels.items() if a.label}}
        return {self._position[name]: label for name, label in labels.items() if name in self._position}

    def rows_in(self, view: View) -> Mask:
        """Which pictures a view shows."""
        with self._lock:
            answered, skipped = self._mask(self.book.labels), self._mask(self.annotations.skipped)
            offered = ~self.left_out & ~self._mask(self.audited())
            if view == "all":
                return offered | answered
            views = {"todo": ~answered & ~skipped & offered, "labelled": answered, "skipped": skipped & ~answered}
            return views[view]

    def _mask(self, names: Iterable[str]) -> Mask:
        mask = np.zeros(len(self.names), np.bool_)
        mask[[self._position[name] for name in names if name in self._position]] = True
        return mask

    def page(self, view: View, predicted: str | None, start: int, count: int, surest: bool = False) -> dict[str, Any]:
        """`count` pictures of a view from rank `start` on; `predicted` restricts them to guesses of one class.

        With `surest`, the most certain guesses come first.
        """
        with self._lock:
            shown, order = self.rows_in(view), self.order
            if predicted is not None or surest:
                shown = shown & self._predicted_as(predicted)
            if surest and self.guesses is not None:
                order = np.argsort(-self.guesses.confidence, kind="stable")
            page = page_of(order, shown, start, count)
            images = [self.describe(row) for row in page.rows]
        return {"images": images, "previous": page.previous, "next": page.next, "matching": int(shown.sum())}

    def _predicted_as(self, name: str | None) -> Mask:
        guesses = self.guesses
        if guesses is None or (name is not None and name not in guesses.class_names):
            return np.zeros(len(self.names), np.bool_)
        return guesses.known & (True if name is None else guesses.label == guesses.class_names.index(name))

    def describe(self, position: int) -> dict[str, Any]:
        """One picture with its guess and its answer."""
        name, guesses = self.names[position], self.guesses
        answer, skipped = self.annotations.get(name)
        guess: dict[str, Any] = {"guess": None, "confidence": None, "entropy": None, "share": None, "sureness": ""}
        if guesses is not None and guesses.known[position]:
            guess = {
                "guess": printable(guesses.class_names[guesses.label[position]]),
                "confidence": float(guesses.confidence[position]),
                **describe_uncertainty(float(guesses.entropy[position]), len(guesses.class_names)),
            }
        label, aside = answer or Answer()
        given = {"given": label or None, "aside": aside or None}
        return {"image": position, "name": printable(name), **guess, **given, "skipped": skipped}

    def mark(
        self, position: int, answer: Answer | None, skip: bool, user: str = "", seen: Answer | None = None
    ) -> dict[str, Any]:
        """Answers for a picture, skips it, or takes the answer back (None); returns the picture as it is then.

        `taken` in the result is false, and nothing changes, where the picture's answer is neither `seen`, the one on
        the user's page, nor the new one: somebody else has answered since.
        """
        name = self._name(position)
        with self._lock, nullcontext() if skip else self.book.exclusive():
            current = self.annotations.get(name).label
            new = current if skip else answer
            taken = current in (new, seen)
            if taken:
                self._keep_class(new)
                self.annotations.set(name, Annotation(new, skip), user)
            return {"changed": [self.describe(position)], "taken": taken, "counts": self.counts()}

    def accept(self, positions: Iterable[int], label: str, user: str = "") -> dict[str, Any]:
        """Gives several pictures that nobody has answered one label; `undo` takes them back together."""
        names = [self._name(position) for position in positions]
        answer = Answer(label)
        with self._lock, self.book.exclusive():
            given = self.book.labels
            new = {
                name: Annotation(answer, False) for name in names if name not in given and name not in self.audited()
            }
            self._keep_class(answer)
            self.annotations.set_many(new, user)
            return {"accepted": len(new), "counts": self.counts()}

    def undo(self, user: str = "") -> dict[str, Any]:
        """Undoes the user's last change; `changed` holds a picture of it, or nothing if there was none to undo."""
        with self._lock, self.book.exclusive():
            position = self._position.get(self.annotations.undo(user) or "", -1)
            return {"changed": [self.describe(position)] if position >= 0 else [], "counts": self.counts()}

    def add_class(self, name: str) -> None:
        """Adds a class, which no picture has yet."""
        with self._lock:
            self.class_list.add(name, self._used())

    def rename_class(self, old: str, new: str, user: str = "") -> None:
        """Gives a class another name, in the table too; the name of another class merges the two."""
        check_class_name(new)
        with self._lock, self.book.exclusive():
            names = self.class_list.names(self._used())
            if old not in names:
                raise NPMatchError(f"class '{old}': there is none of this name")
            if old in self.in_folders.values():
                raise NPMatchError(f"class '{old}': has a folder; rename {self.book.root / 'labeled' / old}")
            if new in (NONE_OF_THESE, BROKEN):
                raise NPMatchError(f"'{new}' is an answer already; give the class another name")
            given = {name: answer for name, answer in self.book.labels.items() if answer.label == old}
            self.annotations.set_many({name: Annotation(Answer(new), False) for name in given}, user)
            self.class_list.rename(old, None if new in names else new, names)

    def remove_class(self, name: str) -> None:
        """Removes a class that no picture has."""
        with self._lock:
            if name in self._used():
                raise NPMatchError(f"class '{name}': pictures have this label; merge it into another class instead")
            self.class_list.rename(name, None, self._used())

    def _keep_class(self, answer: Answer | None) -> None:
        """Keeps the class of an answer in the list, so that it has the same key tomorrow."""
        if answer is not None and answer.label and answer.label not in self.class_list.names([]):
            self.class_list.add(answer.label, self._used())

    def name_of(self, position: int) -> str:
        """The name of a picture."""
        if not 0 <= position < len(self.names):
            raise NPMatchError(f"picture {position}: this folder has the pictures 0 to {len(self.names) - 1}")
        return self.names[position]

    def position_of(self, name: str) -> int:
        """The number of a picture."""
        if name not in self._position:
            raise NPMatchError(f"{name}: is no longer in {self.book.root}; restore it")
        return self._position[name]

    def _name(self, position: int) -> str:
        """The name of a picture that can be labelled here."""
        name = self.name_of(position)
        if name in self.in_folders:
            raise NPMatchError(f"{name}: lies in the folder of its class; move the file to change its label")
        return name

    def counts(self) -> dict[str, Any]:
        """Numbers of pictures: in all, labelled, set aside, skipped, to label; and of the labels of each class."""
        labels = self.labels()
        return {
            "images": int((~self.gone).sum()),
            "labelled": len(labels),
            "aside": sum(bool(answer.set_aside) for answer in self.book.labels.values()),
            "skipped": int(self.rows_in("skipped").sum()),
            "todo": int(self.rows_in("todo").sum()),
            "version": self.version,
            "of_class": dict(Counter(labels.values())),
        }
