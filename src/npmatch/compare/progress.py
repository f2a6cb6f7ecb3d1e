"""What a person sees while runs go on: a live line per running job on a terminal, a line per event elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from npmatch.compare.jobs import Job

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
        with open(folder / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().split(b"\n")[:-1]
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except (OSError, ValueError, KeyError):
        return 0
