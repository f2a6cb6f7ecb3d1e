"""The errors that end in one line for the user. No import here is heavy: the command line starts with this module."""

from __future__ import annotations


class NPMatchError(Exception):
    """Something the user can put right: one line that names the file or the key and what to do."""

    def __str__(self) -> str:
        """The line; control characters, which a file's name may hold, reach no terminal."""
        return "".join(repr(c)[1:-1] if ord(c) < 32 or 127 <= ord(c) < 160 else c for c in super().__str__())


class NoSuchChoiceError(NPMatchError):
    """An unknown name; the message suggests the nearest one that exists."""

    def __init__(self, kind: str, name: str, choices: list[str]) -> None:
        """`kind` is the word for what was asked for: recipe, key, algorithm."""
        from difflib import get_close_matches

        near = get_close_matches(name, choices, n=1, cutoff=0.4)
        there = "choose one of: " + ", ".join(choices[:20]) if choices else "there is none"
        hint = f"did you mean '{near[0]}'?" if near else there
        super().__init__(f"unknown {kind} '{name}'; {hint}")


class ToldElsewhereError(NPMatchError):
    """The first process met an error and tells the user; the others end with it, silently."""


class InterruptedRunError(Exception):
    """The run stopped because it was asked to; its state is in a checkpoint, where it could be saved."""

    def __init__(self, step: int, signum: int, saved: bool = True) -> None:
        """Exit codes follow the shell's convention: 130 after Ctrl-C, 143 after SIGTERM."""
        state = "its state is saved" if saved else "its state could NOT be saved, the checkpoint before it is intact"
        super().__init__(f"stopped after step {step}; {state}, add --resume to the same command to go on")
        self.step = step
        self.exit_code = 128 + signum
