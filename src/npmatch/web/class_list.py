"""The classes of a folder in the order of their keys on the page, also those that no picture has yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from npmatch.data.sources.label_table import BROKEN, NONE_OF_THESE
from npmatch.errors import NPMatchError
from npmatch.files import one_writer, write_atomically
from npmatch.labelling.folder_labels import check_class_name

MAX_CLASSES = 1000


class ClassList:
    """The classes in the order of their keys, kept in a file: also those that no picture has yet."""

    def __init__(self, path: Path) -> None:
        """The file need not exist."""
        self.path = path

    def names(self, used: Iterable[str]) -> list[str]:
        """The classes in the file, then those that are used and not in it."""
        return list(dict.fromkeys([*self._read(), *used]))

    def add(self, name: str, used: Iterable[str]) -> None:
        """Adds a class; one that exists already stays where it is."""
        check_class_name(name)
        if name in (NONE_OF_THESE, BROKEN):
            raise NPMatchError(f"'{name}' is an answer already; give the class another name")

        def added(names: list[str]) -> list[str]:
            if len(names) >= MAX_CLASSES:
                raise NPMatchError(f"there are {len(names)} classes already, which is the limit")
            return [*names, name]

        self._change(added, used)

    def rename(self, old: str, new: str | None, used: Iterable[str]) -> None:
        """Gives a class another name in its place, or removes it (None)."""

        def renamed(names: list[str]) -> list[str]:
            changed = [new if name == old else name for name in names]
            return [name for name in changed if name is not None]

        self._change(renamed, used)

    def _read(self) -> list[str]:
        try:
            names = json.loads(self.path.read_text(encoding="utf-8"))
            return [name for name in names if isinstance(name, str)]
        except (OSError, ValueError, TypeError):  # the names of classes with labels are in the table
            return []

    def _change(self, change: Callable[[list[str]], list[str]], used: Iterable[str]) -> None:
        """Changes what the file holds now: another page may have added a class."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with one_writer(self.path.with_name(f".{self.path.name}.lock")):
                names = list(dict.fromkeys(change(self.names(used))))
                write_atomically(self.path, json.dumps(names, ensure_ascii=False).encode())
        except OSError as error:
            raise NPMatchError(f"{self.path}: cannot be written ({error.strerror or error})") from error
