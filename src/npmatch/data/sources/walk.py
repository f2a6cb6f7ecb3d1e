"""Walks through folders: in a fixed order, to any depth, and with the folders that cannot be read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from npmatch.errors import NPMatchError


class Folder(NamedTuple):
    """One folder of a walk; names are sorted."""

    path: str
    folders: list[str]  # all of them, also links to folders and hidden ones, into which a walk does not go
    files: list[str]
    problem: str = ""  # why the folder cannot be read; it has no names then


def walk(top: str | Path, hidden: bool = False) -> Iterator[Folder]:
    """`top` and every folder below it, each before those in it; not through links, nor into hidden ones unless wanted.

    `os.walk` passes over folders that cannot be read, and fails in folders that are a thousand deep.
    """
    waiting = [os.fspath(top)]
    while waiting:
        path = waiting.pop()
        folders, files, inside = [], [], []
        try:
            with os.scandir(path) as entries:
                _refuse_closed(path)
                for entry in entries:
                    if not _is_folder(entry):
                        files.append(entry.name)
                        continue
                    folders.append(entry.name)
                    if (hidden or not entry.name.startswith(".")) and not entry.is_symlink():
                        inside.append(entry.name)
        except OSError as error:
            yield Folder(path, [], [], error.strerror or str(error))
            continue
        yield Folder(path, sorted(folders), sorted(files))
        waiting += [os.path.join(path, name) for name in sorted(inside, reverse=True)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that cannot be followed
        return False


def names_in(folder: str | Path) -> list[str]:
    """The sorted names of all entries of a folder; one that cannot be read is an error."""
    try:
        names = sorted(os.listdir(folder))
        _refuse_closed(folder)
    except OSError as error:
        raise NPMatchError(unreadable(folder, error.strerror or str(error))) from error
    return names


def _refuse_closed(folder: str | Path) -> None:
    """Raises an error for a folder whose names can be listed, but nothing behind them opened."""
    if not os.access(folder, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(folder))


def unreadable(folder: str | Path, problem: str) -> str:
    """The line about a folder that cannot be read."""
    return f"{folder}: a folder that cannot be read ({problem}); change its permissions, or move it elsewhere"
