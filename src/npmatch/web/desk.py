"""Where labels are given: the run's label book, the images passed over, and the way back from either."""

from __future__ import annotations

from collections import deque

from npmatch.labels import LabelBook

MOST_UNDONE = 1000


class Desk:
    """Labels are in RUN/labels.csv at once; what was skipped is forgotten when the server stops."""

    def __init__(self, book: LabelBook) -> None:
        """Nothing to undo yet."""
        self.book = book
        self.skipped: set[str] = set()
        self._skips: deque[str | None] = deque(maxlen=MOST_UNDONE)  # an image skipped; None: a change of the book

    def label(self, name: str, label: str) -> None:
        """Says what an image is."""
        self.book.set(name, label)
        self.skipped.discard(name)
        self._skips.append(None)

    def skip(self, name: str) -> None:
        """Passes an image over."""
        self.skipped.add(name)
        self._skips.append(name)

    def clear(self, name: str) -> None:
        """An image as it was before anyone looked at it."""
        self.skipped.discard(name)
        if name in self.book.labels:
            self.book.remove(name)
            self._skips.append(None)

    def undo(self) -> list[str]:
        """Takes the last step back, and names the images it was about."""
        if not self._skips:
            return []
        skipped = self._skips.pop()
        if skipped is None:
            return self.book.undo()
        self.skipped.discard(skipped)
        return [skipped]
