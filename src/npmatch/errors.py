"""Errors that end a command with one line for the user.

The command line imports this module first, so it imports nothing heavy.
"""

from __future__ import annotations

import re

# Control characters, which a terminal obeys; line separators; marks that change the writing direction; and what stands
# for bytes of a file name that are not UTF-8, which cannot be printed.
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: object) -> str:
    """Text on one line of a terminal: names of files and classes may hold control characters, which are escaped."""
    return UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], str(text))


class NPMatchError(Exception):
    """An error the user can fix: one line that names the file or the key, and the remedy."""

    def __str__(self) -> str:
        """The line with control characters and bytes that are not UTF-8 escaped."""
        return escaped(super().__str__())


class NoSuchChoiceError(NPMatchError):
    """An unknown name; the message suggests the closest existing one."""

    def __init__(self, kind: str, name: str, choices: list[str]) -> None:
        """`kind` says what was named: recipe, key, algorithm."""
        from difflib import get_close_matches

        closest = get_close_matches(name, choices, n=1, cutoff=0.4)
        available = "choose one of: " + ", ".join(choices[:20]) if choices else "there is none"
        hint = f"did you mean '{closest[0]}'?" if closest else available
        super().__init__(f"unknown {kind} '{name}'; {hint}")


class ReportedElsewhereError(NPMatchError):
    """An error that another rank reports to the user; this rank ends without a message."""


class StoppedError(Exception):
    """A signal stopped the command; the message says how to go on."""

    def __init__(self, message: str, signum: int) -> None:
        """The exit code is the shell's: 130 after Ctrl-C (SIGINT), 143 after SIGTERM."""
        super().__init__(message)
        self.exit_code = 128 + signum


class InterruptedRunError(StoppedError):
    """A signal stopped a run; its state is in a checkpoint if it could be saved."""

    def __init__(self, step: int, signum: int, saved: bool = True) -> None:
        """`saved` says whether the checkpoint of this step could be written."""
        state = "its state is saved" if saved else "its state could NOT be saved, the checkpoint before it is intact"
        super().__init__(f"stopped after step {step}; {state}, add --resume to the same command to go on", signum)
        self.step = step
