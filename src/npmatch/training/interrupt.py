"""Ctrl-C and SIGTERM ask for a stop after the current step; a second Ctrl-C does not wait."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from npmatch.distributed.ranks import all_reduce_max, world_size

AGREE_EVERY = 10  # steps at most between two questions whether a rank was asked to stop,
AGREE_WITHIN = 1.0  # and seconds, where steps are slow: torchrun kills ranks that have not ended after 30


class StopRequest:
    """Whether a signal has asked for a stop, and which."""

    signum: int | None = None


class Agreement:
    """Several ranks stop after the same step, whichever of them was asked: every few steps they ask one another."""

    def __init__(self, request: StopRequest, step: int) -> None:
        """`step`: how many were taken before."""
        self.request = request
        self.asked_at, self.time, self.next = step, time.monotonic(), step + 1

    def signal(self, step: int) -> int | None:
        """The signal that asks for a stop after this step; every rank calls it after each."""
        if world_size() == 1:
            return self.request.signum
        if step < self.next:
            return None
        now = time.monotonic()
        slowest = all_reduce_max(round(1e6 * (now - self.time) / (step - self.asked_at))) / 1e6  # seconds a step
        self.asked_at, self.time = step, now
        self.next = step + min(max(int(AGREE_WITHIN / max(slowest, 1e-6)), 1), AGREE_EVERY)
        return all_reduce_max(self.request.signum or 0) or None


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Catches SIGINT and SIGTERM inside; the handlers there were before come back at the end."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield request
        return

    def ask(signum: int, frame: FrameType | None) -> None:
        if request.signum is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        request.signum = signum

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
