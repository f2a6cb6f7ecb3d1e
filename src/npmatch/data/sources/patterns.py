"""The images that paths on a command line name: files, folders and shell patterns such as 'photos/**/2024-*.jpg'."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

from npmatch.data.sources.folders import IMAGE_EXTENSIONS, is_image, is_unread, walk_pictures
from npmatch.data.sources.walk import names_in, unreadable, walk
from npmatch.errors import NPMatchError


def find_images(paths: Iterable[str | Path]) -> Iterator[Path]:
    """The files in `paths`, every picture below the folders, and the matches of the patterns, in a fixed order.

    Pictures in formats that are not read, links to folders elsewhere and folders that cannot be read are included, so
    that the caller can report them (`why_unread`). A path that names no image is an error before the first image. No
    more than the names of one folder are held in memory.
    """
    named = [Path(path) for path in paths]
    for path in named:  # checked before any image is read, as a typo should not be reported hours later
        if not any(is_image(file.name) or (file == path and not os.path.isdir(path)) for file in _files_of(path)):
            raise NPMatchError(_why_none(path))
    for path in named:
        yield from _files_of(path)


def _files_of(path: Path) -> Iterator[Path]:
    return _matching(path) if not _exists(path) and has_magic(str(path)) else _below(path)


def _why_none(path: Path) -> str:
    """The error message for a path that names no image."""
    if (unread := next(_files_of(path), None)) is not None:
        return f"{path}: no image that can be read; {why_unread(unread)}"
    if os.path.isdir(path):
        endings = ", ".join(IMAGE_EXTENSIONS)
        return f"{path}: no image in this folder or below it; images are recognised by their endings ({endings})"
    return f"{path}: no image matches this pattern" if has_magic(str(path)) else f"{path}: no such file or folder"


def why_unread(path: Path) -> str | None:
    """An error message for a folder, or a picture in a format that is not read; None for any other path.

    A walk follows no links and goes into every other folder that can be read.
    """
    if os.path.islink(path) and os.path.isdir(path):
        return f"{path}: a link to a folder, which is not followed; name it beside the others"
    if os.path.isdir(path):
        return unreadable(path, _problem(path) or "it could not be opened")
    if is_unread(path.name):
        return f"{path}: a picture in a format that is not read; save it as JPEG or PNG"
    return None


def _problem(folder: Path) -> str:
    """Why a folder cannot be read; empty if it can."""
    return next(walk(folder)).problem


def _exists(path: Path) -> bool:
    """Whether there is a file or folder at a path, though perhaps one that may not be read."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with a zero byte
        return False
    except OSError:
        return True
    return True


def _below(path: Path) -> Iterator[Path]:
    """A file itself, or every picture below a folder."""
    if not os.path.isdir(path):
        if _exists(path):
            yield path
        return
    for where, names in walk_pictures(path):
        yield from (Path(where, name) for name in names)


def _matching(pattern: Path) -> Iterator[Path]:
    """The pictures that match a shell pattern, and those below the folders that match it."""
    parts = list(pattern.parts)
    fixed = next(i for i, part in enumerate(parts) if has_magic(part))
    named = set[Path]()  # folders that cannot be read
    for path in _expand(Path(*parts[:fixed]), parts[fixed:]):
        if "**" in parts[:-1] and os.path.isdir(path):
            if path in named or not _problem(path):
                continue  # `**` itself descends into this folder
            named.add(path)
        for image in _below(path):
            if is_image(image.name) or why_unread(image):  # a pattern matches text files too
                yield image


def _expand(folder: Path, parts: list[str]) -> Iterator[Path]:
    """The paths below `folder` that match the parts of a pattern; `**` matches any number of folders, none hidden.

    Folders that cannot be read are among them.
    """
    if not parts:
        yield folder
        return
    head, rest = parts[0], parts[1:]
    if head == "**":
        while rest and rest[0] == "**":  # a second ** would match everything twice
            rest = rest[1:]
        if not rest:  # at the end of a pattern, the folder itself stands for all images below it
            yield folder
        elif os.path.isdir(folder):
            for inner in walk(folder):
                yield from [Path(inner.path)] if inner.problem else _expand(Path(inner.path), rest)
    elif not has_magic(head):
        if _exists(folder / head):
            yield from _expand(folder / head, rest)
    elif os.path.isdir(folder):
        if _problem(folder):
            yield folder
            return
        for name in names_in(folder):
            if not name.startswith(".") and fnmatchcase(name, head) and (not rest or os.path.isdir(folder / name)):
                yield from _expand(folder / name, rest)
