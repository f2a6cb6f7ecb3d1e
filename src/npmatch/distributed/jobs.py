"""Jobs, and who carries them out: `Local`, by processes of this machine, or a `Cluster` (cluster.py) of many.

A job is a command, such as the training of one run; `Engine.start` runs it in a process of its own. An engine only says
how a job ended. What follows from that is the caller's decision, the same for all engines: a job whose machine died is
started again.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from npmatch.errors import NPMatchError

POLL = 0.2  # seconds between two looks at the jobs, by default
VISIBLE_SECONDS = 90.0  # that a file server may take to show what another machine has written; NFS takes up to 60
TRIES = 3  # times that a job may lose its machine without having made progress
STOP_SECONDS = 60.0  # that jobs of other machines have to save their state and stop


class LostWorkerError(Exception):
    """The machine or the process that carried out a job died, or was stopped by others; the message says how."""


@dataclass(frozen=True)
class Command:
    """A Python command, the file for its standard error, and the folder that it locks while it works."""

    words: tuple[str, ...]
    log: Path
    folder: Path


class Process(Protocol):
    """A command under way, here or elsewhere."""

    def has_started(self) -> bool:
        """Whether it runs, and does not wait for a free machine."""

    def poll(self) -> int | None:
        """The exit code, or None while it is under way; raises a LostWorkerError where its machine died."""

    def stop(self) -> None:
        """Asks it to save its state and end."""

    def kill(self) -> None:
        """Ends it at once."""


class Engine(ABC):
    """Carries out commands, each in a process of its own."""

    parallel: int  # number of commands at the same time
    poll = POLL  # seconds between two looks at the jobs
    stop_seconds = STOP_SECONDS

    @abstractmethod
    def start(self, command: Command) -> Process:
        """Starts a command, or queues it."""

    def one_at_a_time(self) -> Engine:
        """The same engine for measurements of time, which must not disturb one another."""
        return self


class Local(Engine):
    """Child processes of this machine, with equal shares of its cores. One that is killed is not started again."""

    stop_seconds = math.inf

    def __init__(self, parallel: int, lock: int | None = None) -> None:
        """`lock` is the descriptor of the caller's lock, which child processes inherit."""
        self.parallel, self.lock = parallel, lock
        self.environment: Mapping[str, str] = child_environment(parallel)

    def start(self, command: Command) -> Process:
        """Starts a command in a session of its own.

        The terminal's Ctrl-C does not reach it there, only the one SIGINT from `stop_all`: a second would end it
        without a checkpoint.
        """
        command.log.parent.mkdir(parents=True, exist_ok=True)
        with open(command.log, "wb") as log:
            child = subprocess.Popen(
                command.words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self.environment,
                start_new_session=True,
                pass_fds=[] if self.lock is None else [self.lock],
            )
        return _Child(child)

    def one_at_a_time(self) -> Local:
        """One process at a time, with the same share of the cores."""
        alone = Local(self.parallel, self.lock)
        alone.parallel = 1
        return alone


class _Child:
    """A child process of this machine."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def has_started(self) -> bool:
        return True

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()


def stop_all(processes: Iterable[Process], seconds: float) -> None:
    """Asks processes to save and stop, and waits for them; Ctrl-C while waiting kills them.

    After `seconds` it waits no longer: jobs of other machines may be out of reach.
    """
    alive = [process for process in processes if not _has_ended(process)]
    for process in alive:
        process.stop()
    deadline = time.monotonic() + seconds
    try:
        while (alive := [process for process in alive if not _has_ended(process)]) and time.monotonic() < deadline:
            time.sleep(POLL / 4)
    except KeyboardInterrupt:
        for process in alive:
            process.kill()
        raise


def _has_ended(process: Process) -> bool:
    try:
        return process.poll() is not None
    except (LostWorkerError, NPMatchError):
        return True


def becomes_visible(is_visible: Callable[[], bool], folder: Path, seconds: float = VISIBLE_SECONDS) -> bool:
    """Waits for something that another machine has written into a folder; False if it does not show in time."""
    deadline = time.monotonic() + seconds
    while not is_visible():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
        with suppress(OSError):
            os.listdir(folder)  # lets the file system look again
    return True


def child_environment(parallel: int) -> dict[str, str]:
    """Environment variables of a child process, with an equal share of the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {**os.environ, "OMP_NUM_THREADS": str(max(1, cores // parallel))}


def python_module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module with this Python."""
    return (sys.executable, "-m", name, *arguments)


def ended_by(signum: int) -> str:
    """How a process ended that a signal stopped, in words."""
    hint = " (perhaps out of memory)" if signum == signal.SIGKILL else ""
    return f"killed by {signal.Signals(signum).name}{hint}"
