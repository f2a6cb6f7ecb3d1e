"""When ranks ask one another whether to stop."""

import signal

import pytest

from npmatch.training import interrupt
from npmatch.training.interrupt import Agreement, StopRequest


@pytest.mark.parametrize(
    ("seconds", "questions"),
    [
        (0.001, [1, 11, 21, 31]),  # every ten steps at most
        (0.3, [1, 4, 7, 10]),  # every second
        (5.0, [1, 2, 3, 4]),  # every step, where torchrun's 30 seconds are but six of them
    ],
)
def test_slow_steps_are_asked_after_more_often(monkeypatch, seconds, questions):
    """The other rank is as fast as this one, and this one was asked to stop from the start."""
    now, asked = [0.0], []
    monkeypatch.setattr(interrupt, "world", lambda: 2)
    monkeypatch.setattr(interrupt, "largest", lambda number: number)
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: now[0])
    request = StopRequest()
    request.signum = signal.SIGTERM
    agreement = Agreement(request, step=0)
    for step in range(1, questions[-1] + 1):
        now[0] += seconds
        if agreement.signal(step) == signal.SIGTERM:
            asked.append(step)
    assert asked == questions
