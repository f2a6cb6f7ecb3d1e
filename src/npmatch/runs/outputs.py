"""Which files a command may write: none that belongs to a run, and none that exists, unless the user means it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from npmatch.errors import NPMatchError
from npmatch.runs.folder import RunFolder


def check_output(path: Path, overwrite: bool, may_replace: Callable[[Path], bool] = lambda _: False) -> None:
    """Refuses a file of a run (the labels people gave, the model), and one that exists unless `overwrite`.

    `may_replace` recognises files that the same command wrote and that hold nothing else.
    """
    if path.is_dir():
        return  # the attempt to write it fails with a message of its own
    if RunFolder(path.parent).owns(path.name):
        raise NPMatchError(f"{path}: belongs to the run in {path.parent}; choose another -o")
    if path.exists() and path.stat().st_size and not overwrite and not may_replace(path):
        raise NPMatchError(f"{path}: exists already; choose another -o, or replace it with --overwrite")
