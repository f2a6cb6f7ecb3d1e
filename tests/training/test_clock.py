"""The clock of a run: every second belongs to one phase."""

from contextlib import suppress

import pytest

from npmatch.training import clock as module
from npmatch.training.clock import Clock


@pytest.fixture
def now(monkeypatch):
    """The time that the clock reads, to be set by a test."""
    time = {"now": 100.0}
    monkeypatch.setattr(module.time, "monotonic", lambda: time["now"])
    return time


def test_every_second_belongs_to_the_phase_entered_last(now):
    clock = Clock()
    for phase, second in (("check", 103), ("train", 110), ("check", 111), (None, 115)):
        now["now"] = second
        clock.enter(phase)
    now["now"] = 120
    assert clock.seconds == {"check": 7 + 4, "train": 1}
    assert clock.elapsed() == 20


def test_a_phase_goes_on_after_another_inside_it(now):
    clock = Clock()
    clock.enter("train")
    now["now"] = 105
    with suppress(ValueError), clock.during("evaluate"):
        now["now"] = 107
        raise ValueError
    now["now"] = 108
    clock.enter(None)
    assert clock.seconds == {"train": 6, "evaluate": 2}
