"""Runs as child processes, a few at a time: one that crashes does not take the others along."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from npmatch.runs.folder import RunFolder
from npmatch.training.interrupt import catch_stop_signals

TAIL = 16_384  # bytes: the last lines of a log, whatever its length


class JobDisplay:
    """Progress on standard error, so that standard output stays for results."""

    def __init__(self, total: int, finished: int, quiet: bool = False) -> None:
        """`total` runs there are, `finished` ones of them were there before."""
        self.console = Console(stderr=True)
        self.total, self.done, self.quiet = total, finished, quiet
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self.whole = self.progress.add_task("[bold]runs", total=total, completed=finished)
        self.tasks: dict[Job, TaskID] = {}

    def started(self, job: Job) -> None:
        """A line of its own for the job."""
        step = last_step(job.folder)
        self.tasks[job] = self.progress.add_task(escape(job.title), total=job.iterations, completed=step)
        if not self.console.is_terminal:
            self.say(f"{job.title}: started" + (f" again at step {step}" if step else ""))

    def look(self) -> None:
        """Reads how far every running job is."""
        if not self.progress.disable:
            for job, task in self.tasks.items():
                self.progress.update(task, completed=last_step(job.folder))

    def ended(self, job: Job, problem: str | None) -> None:
        """The job's line makes room; how it ended stays."""
        self.progress.remove_task(self.tasks.pop(job))
        self.done += 1
        self.progress.update(self.whole, completed=self.done)
        how = "finished" if problem is None else f"failed: {problem}"
        self.say(f"{job.title}: {how} ({self.done} of {self.total})", warn=problem is not None)

    def say(self, text: str, warn: bool = False) -> None:
        """A line that stays; a warning is shown even when quiet."""
        if warn or not self.quiet:
            self.console.print(Text(text, style="yellow" if warn else ""), soft_wrap=True)

    def __enter__(self) -> JobDisplay:
        """Starts the live lines."""
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the terminal as it was."""
        self.progress.stop()


def last_step(folder: Path) -> int:
    """The step of the last whole line in a run's log; 0 where there is none."""
    try:
        with open(RunFolder(folder).log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().split(b"\n")[:-1]
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except (OSError, ValueError, KeyError):
        return 0


POLL = 0.2  # seconds between two looks at the children
ERROR_LINE = re.compile(r"npmatch: |[\w.]+(Error|Exception)\b")  # ours, or the end of a traceback


@dataclass(frozen=True)
class Job:
    """One run to be trained by a process of its own."""

    name: str
    seed: int
    command: tuple[str, ...]
    folder: Path  # of the run; what the process says goes into the file beside it that ends in .log
    iterations: int

    @property
    def log(self) -> Path:
        """What the process wrote to standard error."""
        return self.folder.with_name(self.folder.name + ".log")

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.name}, seed {self.seed}"


class Watcher(Protocol):
    """Whoever shows people what the jobs do."""

    def started(self, job: Job) -> None:
        """It runs now."""

    def look(self) -> None:
        """Time has passed."""

    def ended(self, job: Job, problem: str | None) -> None:
        """It is finished, or has failed because of `problem`."""


class StoppedError(Exception):
    """A comparison stopped because it was asked to; its runs are in checkpoints."""

    def __init__(self, signum: int) -> None:
        """Exit codes follow the shell's convention: 130 after Ctrl-C, 143 after SIGTERM."""
        super().__init__("stopped; every run's state is saved, the same command goes on")
        self.exit_code = 128 + signum


def run_jobs(jobs: Sequence[Job], parallel: int, lock: int | None, watcher: Watcher) -> dict[Job, str]:
    """Runs all, `parallel` at a time, and returns the reasons of those that failed."""
    waiting, running, problems = deque(jobs), dict[Job, subprocess.Popen[bytes]](), dict[Job, str]()
    environment = child_environment(parallel)
    with catch_stop_signals() as stop:
        try:
            while (waiting or running) and stop.signum is None:
                while waiting and len(running) < parallel:
                    job = waiting.popleft()
                    running[job] = start(job, environment, lock)
                    watcher.started(job)
                time.sleep(POLL)
                watcher.look()
                for job in [job for job, process in running.items() if process.poll() is not None]:
                    problem = problem_of(running.pop(job).returncode, job.log)
                    if problem is not None:
                        problems[job] = problem
                    watcher.ended(job, problem)
        finally:
            stop_all(running.values())
        if stop.signum is not None:
            raise StoppedError(stop.signum)
    return problems


def start(job: Job, environment: Mapping[str, str], lock: int | None) -> subprocess.Popen[bytes]:
    """The job's process, out of reach of the terminal's Ctrl-C: two of them would cost it the checkpoint."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with open(job.log, "wb") as log:
        return subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=environment,
            start_new_session=True,
            pass_fds=[] if lock is None else [lock],
        )


def stop_all(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Asks processes to save and stop, and waits; whoever does not want to wait presses Ctrl-C again."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        process.send_signal(signal.SIGINT)
    try:
        for process in alive:
            process.wait()
    except KeyboardInterrupt:
        for process in alive:
            process.kill()
        raise


def child_environment(parallel: int) -> dict[str, str]:
    """The cores shared out evenly."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {**os.environ, "OMP_NUM_THREADS": str(max(1, cores // parallel))}


def python_module(name: str, *words: str) -> tuple[str, ...]:
    """The command that runs a module of this installation."""
    return (sys.executable, "-m", name, *words)


def problem_of(code: int, log: Path) -> str | None:
    """Why a process failed, in one line: the error it wrote last, or how it ended."""
    if code == 0:
        return None
    if code < 0:
        hint = " (perhaps out of memory)" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if ERROR_LINE.match(line)] or lines or [f"ended with exit code {code}"]
    return errors[-1].strip().removeprefix("npmatch: ")
