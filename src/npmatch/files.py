"""Files that are whole or absent, whatever happens while they are written; and folders that one process owns."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, TextIO

from npmatch.errors import NPMatchError

LOCK = ".lock"  # in a folder: who holds it, or held it last
TEMPORARY = ".tmp"  # ends the name of a file that is being written

_held: set[Path] = set()  # by this process, which the operating system's lock would let in twice


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file's content: after a crash at any moment the old or the new one is there, whole."""
    temporary = temporary_path(path)
    try:
        with open_new(temporary) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):  # on a full disk the half-written file is in the way of the next one
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def can_lock() -> bool:
    """Whether this operating system has the locks that `locked` is made of."""
    return find_spec("fcntl") is not None


def is_locked(folder: Path) -> bool:
    """Whether a process is at work in a folder."""
    if folder.resolve() in _held:  # looking at the file would end this process's own lock
        return True
    try:
        import fcntl
    except ImportError:  # not on this operating system: nobody can tell
        return True
    try:
        with open(folder / LOCK, "rb") as file:
            # Shared, and let go at once: whoever wants the folder is not kept waiting.
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    return False


def in_utf8(name: str) -> str:
    r"""A file's name, which may be of any bytes, for where only UTF-8 can be written: other bytes become \xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def was_locked_by(folder: Path, owner: str) -> bool:
    """Whether `owner` was the last to lock a folder; its lock may have ended since."""
    try:
        return bool(owner) and (folder / LOCK).read_text(encoding="utf-8").rstrip().endswith(f", for {owner}")
    except OSError:
        return False


def temporary_path(path: Path) -> Path:
    """The name that a file bears while it is being written."""
    return path.with_name(path.name + TEMPORARY)


def open_new(path: Path) -> BinaryIO:
    """A file for writing; what bore its name is removed and not written through: a link in it may lead anywhere."""
    path.unlink(missing_ok=True)
    return open(path, "xb")


@contextmanager
def locked(folder: Path, owner: str = "", inherited: bool = False) -> Iterator[int | None]:
    """The folder is this process's alone inside; the lock ends with the process, however that ends.

    `owner` is whom the process works for, where there are several processes one after another. With `inherited`, child
    processes that are given the descriptor hold the lock as long as they live. Without locks (`can_lock`) it is None.
    """
    try:
        import fcntl
    except ImportError:  # not on this operating system
        yield None
        return
    folder = folder.resolve()
    is_new = not folder.exists()
    path = folder / LOCK
    refusal = (
        f"{folder}: another process is at work in this folder{{}}; wait for it or stop it, or choose another --out"
    )
    if folder in _held:
        raise NPMatchError(refusal.format(" (this one)"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():  # a folder from elsewhere must not make us write where it likes
            path.unlink()
        opened = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise NPMatchError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from error
    with opened as file:
        try:
            # A lock by lockf is not inherited, and so not prolonged, by a forked loader process; one by flock is.
            (fcntl.flock if inherited else fcntl.lockf)(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without locks
                raise NPMatchError(f"{path}: cannot be locked ({error.strerror}); choose a local --out") from error
            file.seek(0)
            other = file.read().strip()
            raise NPMatchError(refusal.format(f" ({other})" if other else "")) from None
        _name_owner(file, owner)
        _held.add(folder)
        try:
            yield file.fileno()
        finally:
            _held.discard(folder)
            if is_new and [other.name for other in folder.glob("*")] == [path.name]:  # nothing came of it
                path.unlink()
                folder.rmdir()


def _name_owner(file: TextIO, owner: str) -> None:
    """For whoever finds the folder locked; on a full disk the lock holds all the same, without a name."""
    with contextlib.suppress(OSError):
        file.truncate(0)
        name = f"process {os.getpid()} on {socket.gethostname()}{f', for {owner}' if owner else ''}\n"
        os.write(file.fileno(), name.encode())
