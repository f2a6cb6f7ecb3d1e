"""Runs as child processes, a few at a time: one that crashes does not affect the others."""

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

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from npmatch.errors import StoppedError, escaped
from npmatch.runs.folder import RunFolder
from npmatch.training.interrupt import catch_stop_signals

POLL = 0.2  # seconds between two looks at the child processes
TAIL = 16_384  # bytes at the end of a log that are read to find its last line
ERROR_LINE = re.compile(r"npmatch: |[\w.]+(Error|Exception)\b")  # our errors, or the last line of a traceback


@dataclass(frozen=True)
class Job:
    """One run to be trained by a process of its own."""

    name: str
    seed: int
    command: tuple[str, ...]
    folder: Path  # of the run
    iterations: int

    @property
    def log(self) -> Path:
        """The file, beside the run's folder, with the process's standard error."""
        return self.folder.with_name(self.folder.name + ".log")

    @property
    def title(self) -> str:
        """The job's name for people."""
        return f"{self.name}, seed {self.seed}"


class JobDisplay:
    """Progress of all jobs on standard error; standard output is left to results."""

    def __init__(self, total: int, finished: int, quiet: bool = False) -> None:
        """`total` is the number of runs, of which `finished` need no job."""
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
        """Adds a progress bar for a job that has started."""
        step = last_step(job.folder)
        self.tasks[job] = self.progress.add_task(escape(job.title), total=job.iterations, completed=step)
        if not self.console.is_terminal:
            self.say(f"{job.title}: started" + (f" again at step {step}" if step else ""))

    def update(self) -> None:
        """Moves the progress bars to the last steps in the logs."""
        if not self.progress.disable:
            for job, task in self.tasks.items():
                self.progress.update(task, completed=last_step(job.folder))

    def ended(self, job: Job, problem: str | None) -> None:
        """Replaces a job's progress bar by a line that says how it ended."""
        self.progress.remove_task(self.tasks.pop(job))
        self.done += 1
        self.progress.update(self.whole, completed=self.done)
        how = "finished" if problem is None else f"failed: {problem}"
        self.say(f"{job.title}: {how} ({self.done} of {self.total})", warn=problem is not None)

    def say(self, text: str, warn: bool = False) -> None:
        """Prints a line; a warning is printed even when quiet."""
        if warn or not self.quiet:
            self.console.print(Text(escaped(text), style="yellow" if warn else ""), soft_wrap=True)

    def __enter__(self) -> JobDisplay:
        """Shows the progress bars."""
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes the progress bars."""
        self.progress.stop()


def run_jobs(jobs: Sequence[Job], parallel: int, lock: int | None, display: JobDisplay) -> dict[Job, str]:
    """Runs all jobs, `parallel` at a time; returns the reason of each that failed.

    `lock` is the descriptor of the comparison's lock, which child processes inherit. A signal stops all jobs.
    """
    waiting, running, problems = deque(jobs), dict[Job, subprocess.Popen[bytes]](), dict[Job, str]()
    environment = child_environment(parallel)
    with catch_stop_signals() as stop:
        try:
            while (waiting or running) and stop.signum is None:
                while waiting and len(running) < parallel:
                    job = waiting.popleft()
                    running[job] = start(job, environment, lock)
                    display.started(job)
                time.sleep(POLL)
                display.update()
                for job in [job for job, process in running.items() if process.poll() is not None]:
                    problem = problem_of(running.pop(job).returncode, job.log)
                    if problem is not None:
                        problems[job] = problem
                    display.ended(job, problem)
        finally:
            stop_all(running.values())
        if stop.signum is not None:
            raise StoppedError("stopped; all runs are saved, run the same command again to go on", stop.signum)
    return problems


def start(job: Job, environment: Mapping[str, str], lock: int | None) -> subprocess.Popen[bytes]:
    """Starts a job's process in a session of its own.

    The terminal's Ctrl-C does not reach it there, only the one SIGINT from `stop_all`: a second would end it without a
    checkpoint.
    """
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
    """Asks processes to save and stop, and waits for them; Ctrl-C while waiting kills them."""
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
    """Environment variables of a child process, with an equal share of the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {**os.environ, "OMP_NUM_THREADS": str(max(1, cores // parallel))}


def python_module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module with this Python."""
    return (sys.executable, "-m", name, *arguments)


def problem_of(code: int, log: Path) -> str | None:
    """Why a process failed, in one line: the last error in its log, or how it ended. None if it succeeded."""
    if code == 0:
        return None
    if code < 0:
        hint = " (perhaps out of memory)" if -code == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if ERROR_LINE.match(line)] or lines or [f"ended with exit code {code}"]
    return errors[-1].strip().removeprefix("npmatch: ")


def last_step(folder: Path) -> int:
    """The step of the last complete line in a run's log; 0 if there is none."""
    try:
        with open(RunFolder(folder).log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().split(b"\n")[:-1]
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except (OSError, ValueError, KeyError):
        return 0
