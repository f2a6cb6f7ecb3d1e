"""Images by name: files, folders and patterns, one after the other, however many there are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

from npmatch.data.sources.folders import EXTENSIONS, is_image, is_unread, walk_pictures
from npmatch.errors import NPMatchError


def find_images(paths: Iterable[str | Path]) -> Iterator[Path]:
    """Files as given, every picture below the folders given, and those that a pattern names, in a fixed order.

    Pictures of formats that are not read, and links to folders elsewhere, are among them: whoever reads them says so.
    A pattern is one of the shell's, in quotes: 'photos/**/2024-*.jpg'. No more than a folder's names is held at a time.
    """
    named = list(paths)
    for path in map(Path, named):  # all before the first is read: hours later nobody wants to hear of a slip of the pen
        if not any(is_image(found.name) or found == path for found in _named_by(path)):
            raise NPMatchError(_why_none(path))
    for path in map(Path, named):
        yield from _named_by(path)


def _named_by(path: Path) -> Iterator[Path]:
    return _matching(path) if not path.exists() and has_magic(str(path)) else _below(path)


def _why_none(path: Path) -> str:
    if (unread := next(_named_by(path), None)) is not None:
        return f"{path}: no image that can be read; {why_unread(unread)}"
    if path.is_dir():
        return f"{path}: no image in this folder or below it; they are known by their endings ({', '.join(EXTENSIONS)})"
    return f"{path}: no image matches this pattern" if has_magic(str(path)) else f"{path}: no such file or folder"


def why_unread(path: Path) -> str | None:
    """One line on what a name alone tells: a link to a folder, a picture of a format not read; None of any other."""
    if path.is_dir():
        return f"{path}: a link to a folder, which is not followed; name it beside the others"
    if is_unread(path.name):
        return f"{path}: a picture in a format that is not read; save it as JPEG or PNG"
    return None


def _below(path: Path) -> Iterator[Path]:
    """A file itself; of a folder, every picture in it."""
    if not path.is_dir():
        if path.exists():
            yield path
        return
    for where, names in walk_pictures(path):
        yield from (Path(where, name) for name in names)


def _matching(pattern: Path) -> Iterator[Path]:
    parts = list(pattern.parts)
    fixed = next(i for i, part in enumerate(parts) if has_magic(part))
    for path in _expand(Path(*parts[:fixed]), parts[fixed:]):
        if "**" in parts[:-1] and path.is_dir():
            continue  # the pattern has gone, or will go, into it by itself
        for image in _below(path):
            if is_image(image.name) or why_unread(image):  # a pattern catches notes and tables too
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
