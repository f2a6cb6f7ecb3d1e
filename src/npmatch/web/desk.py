"""Where labels are given: the run's label book, the images passed over, and everyone's own way back."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from npmatch.labels import LabelBook

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
