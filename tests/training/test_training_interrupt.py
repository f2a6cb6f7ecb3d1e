"""The first signal asks for a stop after the step, a second Ctrl-C does not wait; handlers come back."""

import os
import signal

import pytest

from npmatch.errors import InterruptedRunError
from npmatch.training.interrupt import listening


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_leaves_at_once(first):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with listening() as stop:
        assert stop.signum is None
        os.kill(os.getpid(), first)
        assert stop.signum == first
        os.kill(os.getpid(), signal.SIGTERM)  # a cluster may ask again and again
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_what_could_not_be_saved_is_said():
    assert "its state is saved" in str(InterruptedRunError(5, signal.SIGTERM))
    unsaved = InterruptedRunError(5, signal.SIGINT, saved=False)
    assert "could NOT be saved" in str(unsaved)
    assert unsaved.exit_code == 130
