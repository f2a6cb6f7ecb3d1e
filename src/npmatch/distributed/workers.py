"""What a cluster's worker does with a job: call a function, or run a command in a process of its own.

These functions run on another machine than the command that the user typed. A problem that the user can solve travels
back as a line of text, because engines do not hand exceptions over as they are.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

from npmatch.errors import NPMatchError
from npmatch.files import is_locked, sees_lock
from npmatch.version import __version__

POLL = 0.2  # seconds between two looks at a child process or a lock
SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


def call_on_worker(
    version: str, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[str | None, Any]:
    """A problem or None, and what the function returns in the working folder of the user's command."""
    host = socket.gethostname()
    if version != __version__:
        return f"{host} has npmatch {__version__}, this machine has {version}; install the same version on both", None
    try:
        os.chdir(folder)
    except OSError as error:
        return f"{folder}: {error.strerror} on {host}; work in a folder that all machines of the cluster share", None
    try:
        return None, function(*arguments)
    except NPMatchError as error:
        return str(error), None


def run_command(words: tuple[str, ...], log: Path, folder: Path, cores: int, campaign: Path | None = None) -> int:
    """Runs a Python command with this machine's Python; returns its exit code.

    It will lock `folder`; the user's command has locked `campaign`, by which this machine can tell that it sees locks.
    Where the call is interrupted, the command is asked to save its state, and ends before this function does.
    """
    check_shared(log.parent, campaign)
    with open(log, "wb") as errors:
        wait_until_free(folder, errors)
        child = subprocess.Popen(
            (sys.executable, *words[1:]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": str(cores)},
            start_new_session=True,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
        try:
            with sigterm_passed_to(child):
                while child.poll() is None:
                    time.sleep(POLL)
            return child.returncode
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()


def check_shared(folder: Path, campaign: Path | None) -> None:
    """Refuses storage that this machine does not share with the user's, or on which it does not see their locks."""
    host = socket.gethostname()
    if not folder.is_dir():
        raise NPMatchError(
            f"{folder}: not on {host}; choose an --out on storage that all machines of the cluster share"
        )
    if campaign is not None and not sees_lock(campaign):
        raise NPMatchError(
            f"{campaign}: {host} does not see this command's lock, so two machines could write the same run; choose an "
            "--out on storage with file locks between machines, such as NFS 4"
        )


def wait_until_free(folder: Path, log: IO[bytes]) -> None:
    """Waits while another process works in a folder: one that was thought dead, and will end or finish the work."""
    if is_locked(folder):
        log.write(f"waiting until another process has left {folder}\n".encode(errors="surrogateescape"))
        log.flush()
    while is_locked(folder):
        time.sleep(POLL)


_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None  # loaded before any fork


def end_with_parent() -> None:
    """Has the operating system send this process a SIGTERM when its parent dies, however that dies."""
    if _prctl is not None:
        _prctl(SET_DEATH_SIGNAL, signal.SIGTERM)


@contextmanager
def sigterm_passed_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Inside, a SIGTERM to this process, as a machine sends that shuts down, goes to the child instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(signum: int, frame: FrameType | None) -> None:
        child.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
