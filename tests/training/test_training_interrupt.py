"""Signals that stop a run: the first one after the step, a second Ctrl-C at once, and all ranks after the same step."""

import os
import signal

import pytest

from npmatch.training import interrupt
from npmatch.training.interrupt import StopAgreement, StopRequest, catch_stop_signals


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_stops_at_once(first):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with catch_stop_signals() as stop:
        assert stop.signum is None
        os.kill(os.getpid(), first)
        assert stop.signum == first
        os.kill(os.getpid(), signal.SIGTERM)  # a cluster may send it several times
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.001, [1, 11, 21, 31]),  # every ten steps at most
        (0.3, [1, 4, 7, 10]),  # about every second
        (5.0, [1, 2, 3, 4]),  # every step: torchrun's 30 seconds are only six steps
    ],
)
def test_the_slower_the_steps_the_more_often_ranks_agree(monkeypatch, seconds, expected):
    """Two ranks with equally slow steps; this one has got the signal before the first step."""
    now, agreed = [0.0], []
    monkeypatch.setattr(interrupt, "world_size", lambda: 2)
    monkeypatch.setattr(interrupt, "all_reduce_max", lambda number: number)
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: now[0])
    request = StopRequest()
    request.signum = signal.SIGTERM
    agreement = StopAgreement(request, step=0)
    for step in range(1, expected[-1] + 1):
        now[0] += seconds
        if agreement.signal(step) == signal.SIGTERM:
            agreed.append(step)
    assert agreed == expected
