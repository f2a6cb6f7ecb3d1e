"""Atomic file writes, and locks that give a folder or a file to one process at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, TextIO

from npmatch.errors import NPMatchError

LOCK = ".lock"  # file in a locked folder that names the process that holds the lock, or held it last
TEMPORARY = ".tmp"  # suffix of a file that is being written
NAME_BYTES = 1024  # of a lock file that are read
LOCK_SECONDS = 10.0  # how long a writer waits for another; a stopped process must not hold up everybody

# Folders locked by this process, which the operating system would let lock them again → descriptor of the lock file,
# and what this process wrote into it.
_held: dict[Path, tuple[int, bytes]] = {}


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file's content; a crash at any moment leaves either the old or the new content, complete.

    In a folder that this process has locked and another one has taken over since, nothing is replaced (`check_held`).
    """
    temporary = temporary_path(path)
    try:
        with open_new(temporary) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        check_held(path)
        os.replace(temporary, path)
    except (OSError, NPMatchError):
        with contextlib.suppress(OSError):  # on a full disk the partial file would take the space of the next one
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def temporary_path(path: Path) -> Path:
    """A path under which a file is written before it is renamed to `path`; every call names another one.

    Two processes that write the same file must not write into each other's temporary file.
    """
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY}")


def final_name(name: str) -> str:
    """The name that a temporary file is renamed to in the end; any other name is returned as it is."""
    return re.sub(rf"(\.[0-9a-f]{{8}})?{re.escape(TEMPORARY)}$", "", name)


def remove_leftovers(path: Path) -> None:
    """Removes temporary files of `path` that killed writers have left; nobody else may be writing it."""
    if not path.parent.is_dir():
        return
    for entry in path.parent.iterdir():
        if entry.name.endswith(TEMPORARY) and final_name(entry.name) == path.name:
            with contextlib.suppress(OSError):
                entry.unlink()


def open_new(path: Path) -> BinaryIO:
    """Opens a new file for writing; an existing file or link is removed first, so that no link is followed."""
    path.unlink(missing_ok=True)
    return open(path, "xb")


def in_utf8(name: str) -> str:
    r"""A file name as valid UTF-8: bytes of the name that are not UTF-8 become \xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def name_as_text(name: str) -> str:
    r"""A file name for a table that others read as UTF-8; `name_from_text` turns it back, whatever bytes it holds.

    Bytes that are not UTF-8 become \xNN, and a backslash that would read like the start of one becomes \x5c.
    """
    if name.isascii() and "\\" not in name:  # nearly every name; a table may have many
        return name
    return in_utf8(re.sub(r"\\(?=x[0-9a-f]{2})", r"\\x5c", name))


def name_from_text(text: str) -> str:
    """The file name that `name_as_text` wrote."""
    if "\\" not in text:
        return text
    name = re.sub(rb"\\x([89a-f][0-9a-f]|5c)", lambda match: bytes.fromhex(match[1].decode()), os.fsencode(text))
    return os.fsdecode(name)


def can_lock() -> bool:
    """Whether this operating system has the file locks that `locked` needs."""
    return find_spec("fcntl") is not None


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder; True where the operating system has no file locks."""
    if folder.resolve() in _held:  # closing the lock file after a test would release this process's own lock
        return True
    try:
        import fcntl
    except ImportError:  # this operating system has no file locks
        return True
    try:
        with open(folder / LOCK, "rb") as file:
            # Shared and released at once, so that a process that wants the lock is not kept waiting.
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    return False


def was_locked_by(folder: Path, owner: str) -> bool:
    """Whether `owner` was the last to lock a folder; the lock may have been released since."""
    try:
        return bool(owner) and (folder / LOCK).read_text(encoding="utf-8").rstrip().endswith(f", for {owner}")
    except OSError:
        return False


def check_held(path: Path) -> None:
    """Refuses to write to a path in a folder that this process has locked, but another process has taken over.

    A lock keeps other processes out for as long as this one lives, but a file server gives up the lock of a machine
    that it has lost contact with. Whoever locks a folder writes its name into the lock file, so a process that was
    thought dead finds another name there, and must not write any more.
    """
    if not _held:
        return
    place = path.resolve()
    for folder, (descriptor, name) in list(_held.items()):
        if folder == place or folder in place.parents:
            # By the descriptor: closing another one of the same file would release the lock. A lock that the server
            # gave up is an OSError here.
            holder = os.pread(descriptor, NAME_BYTES, 0)
            if holder and holder != name:
                by = holder.decode(errors="replace").strip()
                raise NPMatchError(f"{folder}: was taken over by another process ({by}); this one writes nothing more")


def sees_lock(folder: Path) -> bool:
    """Whether the lock that another process holds on a folder with `inherited=True` is visible to this process.

    It is not if a file system keeps the locks of each machine to itself.
    """
    try:
        import fcntl
    except ImportError:
        return True
    with open(folder / LOCK, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EACCES, errno.EAGAIN)
    return False


@contextmanager
def locked(folder: Path, owner: str = "", inherited: bool = False) -> Iterator[int | None]:
    """Locks a folder for this process, creating it if needed; the lock is released on exit or when the process ends.

    `owner` names the job that the process belongs to, for jobs of several consecutive processes. The value is the
    descriptor of the lock file: with `inherited`, child processes that get it keep the lock for as long as they live.
    It is None on an operating system without file locks (`can_lock`).
    """
    try:
        import fcntl
    except ImportError:  # this operating system has no file locks
        yield None
        return
    folder = folder.resolve()
    is_new = not folder.exists()
    path = folder / LOCK
    if folder in _held:
        raise _already_locked(folder, "this one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():  # a folder from elsewhere must not redirect writes through a link
            path.unlink()
        opened = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise NPMatchError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from error
    with opened as file:
        try:
            # A lock by flock is inherited by forked worker processes, which then prolong it; one by lockf is not.
            (fcntl.flock if inherited else fcntl.lockf)(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without locks
                raise NPMatchError(f"{path}: cannot be locked ({error.strerror}); choose a local --out") from error
            file.seek(0)
            raise _already_locked(folder, holder=file.read().strip()) from None
        _held[folder] = file.fileno(), _name_owner(file, owner)
        try:
            yield file.fileno()
        finally:
            del _held[folder]
            if is_new and [entry.name for entry in folder.glob("*")] == [path.name]:  # nothing was written
                path.unlink()
                folder.rmdir()


@contextmanager
def one_writer(lock: Path) -> Iterator[None]:
    """Waits until no other process and no other thread is inside the same `with`, that is, holds the file `lock`.

    The file stays when the lock is released: a process that waits may have opened it already. On an operating system
    without file locks (`can_lock`) there is no waiting.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    if lock.is_symlink():  # a folder from elsewhere must not redirect writes through a link
        lock.unlink()
    # By flock, threads of this process exclude one another too, because each opens the file for itself.
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        _wait_for_lock(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), lock)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # explicitly, because a forked child may hold the descriptor
    finally:
        os.close(descriptor)


def _wait_for_lock(take: Callable[[], None], lock: Path) -> None:
    """Calls `take` until it succeeds; a lock that is held for longer than LOCK_SECONDS is an error."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return take()
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without locks
                raise
        if time.monotonic() > deadline:
            raise NPMatchError(f"{lock}: held by another process for {LOCK_SECONDS:g} seconds; end it and try again")
        time.sleep(0.001)


def _already_locked(folder: Path, holder: str) -> NPMatchError:
    """The error for a folder whose lock is held; `holder` is what its lock file says, perhaps nothing."""
    process = f"another process is at work in this folder{f' ({holder})' if holder else ''}"
    return NPMatchError(f"{folder}: {process}; wait for it or stop it, or choose another --out")


def _name_owner(file: TextIO, owner: str) -> bytes:
    """Writes the holder into the lock file and returns what the file says; on a full disk the lock holds without it."""
    with contextlib.suppress(OSError):
        file.truncate(0)
        # The time makes the name unlike that of any earlier holder: containers share host names and process numbers.
        since = f"{datetime.now().isoformat(sep=' ')}{f', for {owner}' if owner else ''}"
        os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
    return os.pread(file.fileno(), NAME_BYTES, 0)


def read_regular(path: Path) -> bytes:
    """The content of a regular file; anything else under its name is an OSError."""
    check_regular(path)
    return path.read_bytes()


def check_regular(path: Path) -> None:
    """Raises an OSError where a path leads to a pipe, a device or a folder: reading from the former may never end."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
