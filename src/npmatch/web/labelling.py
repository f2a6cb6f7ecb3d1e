"""A run's unlabelled images, what the model says of them, and the labels people give them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np

from npmatch.data.labels import image_name, positions_by_name
from npmatch.errors import NPMatchError
from npmatch.report.formatting import printable
from npmatch.runs.label_book import LabelBook
from npmatch.runs.open import RunData
from npmatch.types import Predictor
from npmatch.web.answer import uncertainty
from npmatch.web.pool import Mask, Pool

MOST_UNDONE = 1000  # steps
MOST_PEOPLE = 100  # whose steps are remembered


class Said(NamedTuple):
    """What people have said of an image."""

    label: str | None
    skipped: bool


class Step(NamedTuple):
    """One change, which can be taken back."""

    name: str
    before: Said
    after: Said


class Desk:
    """Labels are in RUN/labels.csv at once; what was skipped is forgotten when the server stops."""

    def __init__(self, book: LabelBook) -> None:
        """Nothing to undo yet."""
        self.book = book
        self.skipped: set[str] = set()
        self._steps: OrderedDict[str, deque[Step]] = OrderedDict()  # by who took them

    def said(self, name: str) -> Said:
        """What is known of an image."""
        return Said(self.book.labels.get(name), name in self.skipped)

    def say(self, name: str, what: Said, who: str = "") -> None:
        """Says something of an image."""
        before = self.said(name)
        if what == before:
            return
        self._set(name, what)
        self._steps_of(who).append(Step(name, before, what))

    def undo(self, who: str = "") -> str | None:
        """Takes somebody's own last step back, and names its image; what others have made of one since stays."""
        steps = self._steps_of(who)
        while steps:
            step = steps.pop()
            if self.said(step.name) == step.after:
                self._set(step.name, step.before)
                return step.name
        return None

    def _set(self, name: str, what: Said) -> None:
        if what.label is not None:
            self.book.set(name, what.label)
        elif name in self.book.labels:
            self.book.remove(name)
        (self.skipped.add if what.skipped else self.skipped.discard)(name)

    def _steps_of(self, who: str) -> deque[Step]:
        steps = self._steps.setdefault(who, deque(maxlen=MOST_UNDONE))
        self._steps.move_to_end(who)
        if len(self._steps) > MOST_PEOPLE:
            self._steps.popitem(last=False)
        return steps


View = Literal["todo", "labelled", "skipped", "all"]
WHATEVER = -1  # a label that whoever changes it did not look at


class Labelling:
    """Images go by their position in the training set: the page never sees, or sends, a path to open."""

    def __init__(self, run: RunData) -> None:
        """`run`: its data, opened."""
        self.train = run.dataset.train
        self.class_names = run.dataset.class_names
        self.pool = Pool(run.unlabeled().positions)
        self.desk = Desk(run.book())
        self._positions = positions_by_name(self.train)
        self._lock = Lock()  # two people may label at once

    def rank(self, predict: Predictor, stopped: Callable[[], bool]) -> None:
        """Orders the images by uncertainty, until it is done or stopped."""
        self.pool.rank(self.train.images, predict, stopped)

    def page(self, view: View, predicted: int | None, start: int, count: int) -> dict[str, Any]:
        """`count` images from rank `start` on, the least sure first."""
        keep = self._rows_of(view)
        if predicted is not None:
            keep = keep & (self.pool.label == predicted)
        page = self.pool.page(keep, start, count)
        return {
            "images": [self._image(int(self.pool.positions[row])) for row in page.rows],
            "previous": page.previous,
            "next": page.next,
            "matching": int((keep & self.pool.is_ranked).sum()),
        }

    def mark(
        self, position: int, label: int | None, skip: bool, who: str = "", seen: int | None = WHATEVER
    ) -> dict[str, Any]:
        """Labels an image, skips it, or takes its label away; the image as it is now, and whether that was `taken`.

        It is not where the label is not the one that was `seen`: somebody else has given it meanwhile.
        """
        if position not in self.pool.row_of:
            raise NPMatchError(f"image {position}: no unlabelled image of this run")
        if label is not None and label not in range(len(self.class_names)):
            raise NPMatchError(f"class {label}: this run has the classes 0 to {len(self.class_names) - 1}")
        name = image_name(self.train, position)
        with self._lock:
            now = self.desk.said(name).label
            wanted = now if skip else self._class_name(label)
            taken = seen == WHATEVER or now in (wanted, self._class_name(seen))
            if taken:
                self.desk.say(name, Said(wanted, skip), who)
            return {"changed": [self._image(position)], "taken": taken, "counts": self.counts()}

    def undo(self, who: str = "") -> dict[str, Any]:
        """Takes somebody's last step back; the image that changed, if any."""
        with self._lock:
            position = self._positions.get(self.desk.undo(who) or "", -1)
            changed = [self._image(position)] if position in self.pool.row_of else []
            return {"changed": changed, "counts": self.counts()}

    def counts(self) -> dict[str, int]:
        """How many images there are, and how many were looked at by the model and by people."""
        todo = int((self._rows_of("todo") & ~self.pool.is_unreadable).sum())
        return {
            "images": len(self.pool),
            "looked_at": self.pool.done,
            "unreadable": int(self.pool.is_unreadable.sum()),
            "labelled": len(self.desk.book.labels),
            "skipped": int(self._rows_of("skipped").sum()),
            "todo": todo,
        }

    def _class_name(self, label: int | None) -> str | None:
        return None if label is None or label not in range(len(self.class_names)) else self.class_names[label]

    def _image(self, position: int) -> dict[str, Any]:
        """One image: what the model says and what people said."""
        row, name = self.pool.row_of[position], image_name(self.train, position)
        given = self.desk.book.labels.get(name)
        return {
            "image": position,
            "name": printable(name),
            "guess": int(self.pool.label[row]),
            "confidence": float(self.pool.confidence[row]),
            **uncertainty(float(self.pool.entropy[row]), len(self.class_names)),
            "given": None if given is None else self.class_names.index(given),
            "skipped": name in self.desk.skipped,
        }

    def _rows_of(self, view: View) -> Mask:
        """Which of the pool's images a view shows."""
        labelled, skipped = self._mask(self.desk.book.labels), self._mask(self.desk.skipped)
        views = {"todo": ~labelled & ~skipped, "labelled": labelled, "skipped": skipped & ~labelled}
        return views.get(view, np.ones(len(self.pool), dtype=np.bool_))

    def _mask(self, names: Iterable[str]) -> Mask:
        mask = np.zeros(len(self.pool), dtype=np.bool_)
        rows = [self.pool.row_of.get(self._positions.get(name, -1)) for name in names]
        mask[[row for row in rows if row is not None]] = True
        return mask
