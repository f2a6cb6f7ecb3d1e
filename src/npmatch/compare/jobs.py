"""Runs in processes of their own, a few at a time: one that crashes does not affect the others."""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from npmatch.distributed.jobs import (
    TRIES,
    Command,
    Engine,
    LostWorkerError,
    Process,
    becomes_visible,
    ended_by,
    stop_all,
)
from npmatch.errors import StoppedError, escaped
from npmatch.runs.folder import RunFolder
from npmatch.training.interrupt import catch_stop_signals

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

    def show(self, job: Job, process: Process) -> None:
        """Adds a progress bar for a job once it has started."""
        if job in self.tasks or not process.has_started():
            return
        step = last_step(job.folder)
        self.tasks[job] = self.progress.add_task(escape(job.title), total=job.iterations, completed=step)
        if not self.console.is_terminal:
            self.say(f"{job.title}: started" + (f" again at step {step}" if step else ""))

    def update(self) -> None:
        """Moves the progress bars to the last steps in the logs."""
        if not self.progress.disable:
            for job, task in self.tasks.items():
                self.progress.update(task, completed=last_step(job.folder))

    def lost(self, job: Job, problem: str | None) -> None:
        """Removes the progress bar of a job that will be started again."""
        self._remove(job)
        self.say(f"{job.title}: {problem}; it will be resumed at its last checkpoint", warn=True)

    def _remove(self, job: Job) -> None:
        if job in self.tasks:  # it may have ended before it was seen to start
            self.progress.remove_task(self.tasks.pop(job))

    def ended(self, job: Job, problem: str | None) -> None:
        """Replaces a job's progress bar by a line that says how it ended."""
        self._remove(job)
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


def run_jobs(
    jobs: Sequence[Job], engine: Engine, display: JobDisplay, ended: Callable[[Job, str | None], None] | None = None
) -> dict[Job, str]:
    """Runs all jobs, as many at a time as the engine takes; returns the reason of each that failed.

    `ended` is called with each job that has ended, and the reason if it failed. A job whose worker died is started
    again, and resumes its run from the last checkpoint. A signal stops all jobs.
    """
    waiting, under_way, problems = deque(jobs), dict[Job, Process](), dict[Job, str]()
    losses = Losses()
    with catch_stop_signals() as stop:
        try:
            while (waiting or under_way) and stop.signum is None:
                while waiting and len(under_way) < engine.parallel and stop.signum is None:
                    job = waiting.popleft()
                    under_way[job] = engine.start(Command(job.command, job.log, job.folder))
                for job, process in under_way.items():
                    display.show(job, process)
                time.sleep(engine.poll)
                display.update()
                for job, problem, is_lost in ended_jobs(under_way):
                    del under_way[job]
                    if is_lost and losses.may_go_on(job):
                        display.lost(job, problem)
                        waiting.appendleft(job)
                        continue
                    if problem is not None:
                        problems[job] = problem
                    display.ended(job, problem)
                    if ended is not None:
                        ended(job, problem)
        finally:
            stop_all(under_way.values(), engine.stop_seconds)
        if stop.signum is not None:
            raise StoppedError("stopped; all runs are saved, run the same command again to go on", stop.signum)
    return problems


def ended_jobs(under_way: Mapping[Job, Process]) -> list[tuple[Job, str | None, bool]]:
    """The jobs that have ended, each with the reason if it failed, and whether it lost its worker."""
    found: list[tuple[Job, str | None, bool]] = []
    for job, process in under_way.items():
        try:
            code = process.poll()
        except LostWorkerError as error:
            found.append((job, f"its worker was lost: {error}", True))
            continue
        if code is not None:
            found.append((job, problem_of(code, job.log), False))
    return found


class Losses:
    """How often each job has lost its worker since it last made progress."""

    def __init__(self) -> None:
        """Counts from zero."""
        self.counts: dict[Job, tuple[int, int]] = {}  # job → losses in a row, step of its run at the last one

    def may_go_on(self, job: Job) -> bool:
        """Counts one loss; False if the run loses every worker without getting further."""
        count, before = self.counts.get(job, (0, -1))
        step = last_step(job.folder)
        count = 1 if step > before else count + 1
        self.counts[job] = count, max(step, before)
        return count < TRIES


def problem_of(code: int, log: Path) -> str | None:
    """Why a process failed, in one line: the last error in its log, or how it ended. None if it succeeded."""
    if code == 0:
        return None
    if code < 0:
        return ended_by(-code)
    text = log.read_text(encoding="utf-8", errors="replace") if becomes_visible(log.exists, log.parent) else ""
    lines = [line for line in text.splitlines() if line.strip()]
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
