"""The clock of a run: the seconds since its start, and those of each of its phases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Runs from its creation on; the phase that was entered last is the one that time is spent in."""

    def __init__(self) -> None:
        """No phase has been entered yet."""
        self.seconds: dict[str, float] = {}  # phase → seconds spent in it, without the present stay
        self.phase: str | None = None
        self.started = self.entered = time.monotonic()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def enter(self, phase: str | None) -> None:
        """Ends the present phase and begins, or goes on with, another; None is no phase."""
        now = time.monotonic()
        if self.phase is not None:
            self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self.entered
        self.phase, self.entered = phase, now

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Context that is spent in `phase`, and after which the present phase goes on."""
        outer = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(outer)
