"""The file of a label book: one writer at a time, and its last good state kept beside it.

Every state is written to the backup first and then to the file itself, each atomically. So a label that is in the file
is in the backup too, and whatever happens to one of them, the other holds every label that was ever acknowledged.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from npmatch.data.labels import LabelRow, encode_label_table, read_label_table
from npmatch.errors import NPMatchError
from npmatch.files import one_writer, remove_leftovers, write_atomically
from npmatch.runs.folder import backup_of

SETTLE_SECONDS = 1.0  # a file that was changed within them may still be being written, by an editor for example


class DamagedLabelsError(NPMatchError):
    """The file is not a table of labels, or only the beginning of one."""


class Table(NamedTuple):
    """What a file holds: its rows, and the bytes they were read from, None if there is no file."""

    rows: list[LabelRow]
    content: bytes | None


class LabelFile:
    """RUN/labels.csv, or the file that it links to. `path` is for messages; the backup lies beside the file itself."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """`warn` is told when a damaged file has been restored."""
        self.path = path
        self.warn = warn

    @contextmanager
    def one_writer(self) -> Iterator[None]:
        """Keeps other processes and threads from writing."""
        file = self._file()
        with one_writer(file.with_name(f".{file.name}.lock")):
            for written in (file, backup_of(file)):
                remove_leftovers(written)
            yield

    def stamp(self) -> tuple[int, ...] | None:
        """Inode, times and size of the file, to detect changes; None if it does not exist."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NPMatchError(f"{self.path}: cannot be read ({error.strerror})") from error
        if not stat.S_ISREG(status.st_mode):  # a pipe would never end
            raise NPMatchError(f"{self.path}: not a regular file; remove it, or restore the labels")
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size

    def content(self) -> bytes | None:
        """The bytes of the file; None if it does not exist."""
        if self.stamp() is None:
            return None
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise NPMatchError(f"{self.path}: cannot be read ({error.strerror})") from error

    def read(self) -> Table:
        """The table in the file, an empty one if it does not exist."""
        content = self.content()
        if content is None:
            return Table([], None)
        try:
            rows = list(read_label_table(self.path, content))
        except NPMatchError as error:
            raise DamagedLabelsError(str(error)) from error
        if not content.endswith(b"\n") and self._backup().startswith(content):
            raise DamagedLabelsError(f"{self.path}: ends in the middle of a row")
        return Table(rows, content)

    def read_or_mend(self) -> Table:
        """As `read`, but restores a damaged file from the backup; nobody else may be writing."""
        try:
            return self.read()
        except DamagedLabelsError:
            self._let_settle()
        try:
            return self.read()
        except DamagedLabelsError as damage:
            self._mend(damage)
            return self.read()

    def write(self, labels: Mapping[str, str]) -> bytes:
        """Writes the backup and then the file, and returns their content; nobody else may be writing."""
        content, file = encode_label_table(labels), self._file()
        if not file.exists() and (former := self._backup()):  # somebody has removed the file, perhaps by mistake
            write_atomically(_free_name(file, "removed"), former)
        write_atomically(backup_of(file), content)
        write_atomically(file, content)
        return content

    def _mend(self, damage: DamagedLabelsError) -> None:
        """Restores the last good state, and keeps the damaged file under another name."""
        file, good = self._file(), self._backup()
        backup, aside = backup_of(file), _free_name(file, "damaged")
        if not good:
            raise NPMatchError(f"{damage} (there is no {backup.name} to restore it from)") from damage
        size = f"number of labels: {sum(1 for _ in read_label_table(backup, good))}"
        try:
            write_atomically(aside, file.read_bytes())
            write_atomically(file, good)
        except OSError as error:
            reason = f"{damage}; it cannot be restored from {backup.name} ({error.strerror or error})"
            raise NPMatchError(reason) from error
        self.warn(f"{damage}; restored from {backup.name} ({size}), and the damaged file is kept as {aside.name}")

    def _let_settle(self) -> None:
        """Waits until nobody can still be saving the file: an editor does not write atomically."""
        while (stamp := self.stamp()) is not None and 0 <= (age := time.time() - stamp[1] / 1e9) < SETTLE_SECONDS:
            time.sleep(SETTLE_SECONDS - age)

    def _file(self) -> Path:
        """The file that is written: that of a link, because several runs may share one book."""
        file = Path(os.path.realpath(self.path))
        if self.path.is_symlink() and not file.exists():  # a run from elsewhere must not create files where it likes
            raise NPMatchError(f"{self.path}: links to {file}, which does not exist; create it, or remove the link")
        return file

    def _backup(self) -> bytes:
        """The content of the backup; empty if there is none that can be read."""
        backup = backup_of(self._file())
        try:
            return backup.read_bytes() if backup.is_file() else b""
        except OSError:
            return b""


def _free_name(file: Path, prefix: str) -> Path:
    """A name that begins with `prefix` and that no file beside `file` has."""
    name, number = file.with_name(f"{prefix}-{file.name}"), 1
    while name.exists():
        number += 1
        name = file.with_name(f"{prefix}-{number}-{file.name}")
    return name
