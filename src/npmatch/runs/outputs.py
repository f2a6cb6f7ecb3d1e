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
    try:
        is_own = RunFolder(path.parent).owns(path.name)
        is_kept = path.is_file() and path.stat().st_size > 0 and not overwrite and not may_replace(path)
    except OSError:
        return  # the attempt to write it fails with a message of its own, as that to write a folder does
    if is_own:
        raise NPMatchError(f"{path}: belongs to the run in {path.parent}; choose another -o")
    if is_kept:
        raise NPMatchError(f"{path}: exists already; choose another -o, or replace it with --overwrite")
