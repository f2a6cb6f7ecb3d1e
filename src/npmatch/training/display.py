"""Progress of a run: a live line on a terminal; where there is none, a printed line for each evaluation."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from npmatch.distributed.ranks import is_rank_zero
from npmatch.errors import escaped
from npmatch.files import write_atomically
from npmatch.training.clock import Clock

PROGRESS_VARIABLE = "NPMATCH_PROGRESS"  # names a file for the progress of `counting`
PROGRESS_SECONDS = 0.3
LABELS = {
    "error": ("error", "{:.2f} %"),
    "trusted": ("trusted", "{:.0%}"),
    "pseudo_accuracy": ("pseudo-labels right", "{:.1%}"),
    "foreign_trusted": ("foreign images trusted", "{:.0%}"),
    "loss_labeled": ("loss", "{:.3f}"),
    "loss_unlabeled": ("+", "{:.3f}"),
    "alpha": ("α", "{:.2f}"),
    "images_per_second": ("images/s", "{:,.0f}"),
}


class Display:
    """Progress on standard error, so that standard output stays for results."""

    def __init__(self, title: str, total: int, quiet: bool = False) -> None:
        """`quiet` shows nothing but warnings."""
        self.console = Console(stderr=True, quiet=not is_rank_zero())  # only rank zero prints
        self.quiet = quiet
        self.clock = Clock()
        self.values: dict[str, float] = {}
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[line]}"),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.progress.add_task(title, total=total, line="")

    def expect(self, title: str, total: int) -> None:
        """Sets the title and the total number of steps of what is about to begin."""
        self.progress.update(self.task, description=title, total=total)

    def show(self, step: int, values: dict[str, float]) -> None:
        """Shows new values after `step` steps; values that are not given stay as they are."""
        self.values.update(values)
        self.progress.update(self.task, completed=step, line=self.line())
        if "error" in values and not self.quiet and not self.console.is_terminal:
            self.console.print(f"step {step}: {self.line()}", highlight=False, soft_wrap=True)

    def advance(self, step: int) -> None:
        """Moves the bar to `step`."""
        self.progress.update(self.task, completed=step)

    def line(self) -> str:
        """The present values in one line."""
        shown = [(key, label, form) for key, (label, form) in LABELS.items() if key in self.values]
        return "  ".join(f"{label} {form.format(self.values[key])}" for key, label, form in shown)

    def show_choices(self, choices: Iterable[tuple[str, Any, str]]) -> None:
        """Shows a table of settings that were chosen automatically: key, value, reason."""
        rows = list(choices)
        if rows and not self.quiet:
            table = Table("chosen", "", "because", title="what was not given", title_justify="left")
            for key, value, reason in rows:
                table.add_row(key, Text(escaped(value), overflow="fold"), Text(escaped(reason), overflow="fold"))
            self.console.print(table)

    def say(self, text: str) -> None:
        """Prints a line, unless quiet."""
        if not self.quiet:
            self.console.print(escaped(text), highlight=False, soft_wrap=True, markup=False)

    def warn(self, text: str) -> None:
        """Prints a warning, also when quiet."""
        self.console.print(f"warning: {escaped(text)}", style="yellow", highlight=False, soft_wrap=True, markup=False)

    def __enter__(self) -> Display:
        """Starts the live line."""
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the live line."""
        self.progress.stop()


@contextmanager
def counting(title: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error for `total` items; yields a function that advances it by n items.

    A program that has started this process, such as the page, reads the progress from the file that it has named in
    the environment.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=total)
        note = _note_progress(title, total)

        def advance(n: int) -> None:
            progress.advance(task, n)
            note(n)

        yield advance


def _note_progress(title: str, total: int) -> Callable[[int], None]:
    """Writes title, done, total and seconds to the file in PROGRESS_VARIABLE, a few times a second at most."""
    file, started = os.environ.get(PROGRESS_VARIABLE), time.monotonic()
    if not file:
        return lambda n: None
    done, last = 0, -PROGRESS_SECONDS

    def note(n: int) -> None:
        nonlocal done, last
        done, now = done + n, time.monotonic() - started
        if now - last >= PROGRESS_SECONDS or done >= total:
            last = now
            facts = {"title": title, "done": done, "total": total, "seconds": now}
            with suppress(OSError):  # nobody sees it, and the work goes on
                write_atomically(Path(file), json.dumps(facts).encode())

    note(0)
    return note
