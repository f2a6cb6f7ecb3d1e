"""Images by name: files, folders and patterns, one after the other, however many there are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

from npmatch.data.folders import EXTENSIONS, is_image, walk_images
from npmatch.types import NPMatchError


def find_images(paths: Iterable[str | Path]) -> Iterator[Path]:
    """Files as given, every image below the folders given, and those that a pattern names, in a fixed order.

    A pattern is one of the shell's, in quotes: 'photos/**/2024-*.jpg'. No more than a folder's names is held at a time.
    """
    named = list(paths)
    for path in map(Path, named):  # all before the first is read: hours later nobody wants to hear of a slip of the pen
        if not any(True for _ in _named_by(path)):
            raise NPMatchError(_why_none(path))
    for path in map(Path, named):
        yield from _named_by(path)


def _named_by(path: Path) -> Iterator[Path]:
    return _matching(path) if not path.exists() and has_magic(str(path)) else _below(path)


def _why_none(path: Path) -> str:
    if path.is_dir():
        return f"{path}: no image in this folder or below it; they are known by their endings ({', '.join(EXTENSIONS)})"
    return f"{path}: no image matches this pattern" if has_magic(str(path)) else f"{path}: no such file or folder"


def _below(path: Path) -> Iterator[Path]:
    """A file itself; of a folder, every image in it."""
    if not path.is_dir():
        if path.exists():
            yield path
        return
    for where, names in walk_images(path):
        yield from (Path(where, name) for name in names)


def _matching(pattern: Path) -> Iterator[Path]:
    parts = list(pattern.parts)
    fixed = next(i for i, part in enumerate(parts) if has_magic(part))
    for path in _expand(Path(*parts[:fixed]), parts[fixed:]):
        if "**" in parts[:-1] and path.is_dir():
            continue  # the pattern has gone, or will go, into it by itself
        for image in _below(path):
            if is_image(image.name):  # a pattern catches notes and tables too
                yield image


def _expand(folder: Path, parts: list[str]) -> Iterator[Path]:
    """What the rest of a pattern names below a folder; `**` stands for any number of folders, hidden ones left out."""
    if not parts:
        yield folder
        return
    head, rest = parts[0], parts[1:]
    if head == "**":
        while rest and rest[0] == "**":  # which would name everything twice
            rest = rest[1:]
        yield from _expand(folder, rest)
        if rest:  # a folder stands for all that is below it
            for name in _names(folder):
                if (folder / name).is_dir() and not (folder / name).is_symlink():
                    yield from _expand(folder / name, ["**", *rest])
    elif not has_magic(head):
        if (folder / head).exists():
            yield from _expand(folder / head, rest)
    else:
        for name in _names(folder):
            if fnmatchcase(name, head) and (not rest or (folder / name).is_dir()):
                yield from _expand(folder / name, rest)


def _names(folder: Path) -> list[str]:
    """Of all that is in a folder, in order."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (NotADirectoryError, FileNotFoundError):
        return []
