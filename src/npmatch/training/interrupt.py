"""Ctrl-C and SIGTERM stop a run after the current step; a second Ctrl-C stops it at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from npmatch.distributed.ranks import all_reduce_max, world_size

# Ranks exchange whether one of them was signalled at least every AGREE_EVERY steps. Where steps are slow they do so
# about every AGREE_WITHIN seconds, because torchrun kills ranks that have not ended 30 seconds after its signal.
AGREE_EVERY = 10
AGREE_WITHIN = 1.0


class StopRequest:
    """The signal that asks for a stop, once there is one."""

    signum: int | None = None


class StopAgreement:
    """Lets all ranks stop after the same step, whichever of them got the signal, by a collective every few steps."""

    def __init__(self, request: StopRequest, step: int) -> None:
        """`step` is the number of steps taken so far."""
        self.request = request
        self.last, self.last_time, self.next = step, time.monotonic(), step + 1  # last and next collective

    def signal(self, step: int) -> int | None:
        """The signal to stop with after this step, or None; every rank calls it after every step."""
        if world_size() == 1:
            return self.request.signum
        if step < self.next:
            return None
        now = time.monotonic()
        slowest = all_reduce_max(round(1e6 * (now - self.last_time) / (step - self.last))) / 1e6  # seconds a step
        self.last, self.last_time = step, now
        self.next = step + min(max(int(AGREE_WITHIN / max(slowest, 1e-6)), 1), AGREE_EVERY)
        return all_reduce_max(self.request.signum or 0) or None


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Context in which SIGINT and SIGTERM are recorded in the StopRequest; restores the previous handlers."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield request
        return

    def record(signum: int, frame: FrameType | None) -> None:
        if request.signum is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        request.signum = signum

    before = {s: signal.signal(s, record) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
