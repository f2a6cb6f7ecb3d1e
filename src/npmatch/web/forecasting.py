"""Forecasts on the page of a folder: `npmatch forecast` as a child process, and what it has found for a round."""

from __future__ import annotations

import shlex
from typing import Any

from npmatch.errors import NPMatchError
from npmatch.report import forecast
from npmatch.report.formatting import printable
from npmatch.web.figures import as_svg_file
from npmatch.web.processes import ChildProcess, Job
from npmatch.web.rounds import Rounds


class Forecasts(ChildProcess):
    """The forecasts of one folder's rounds."""

    doing = "forecast"

    def __init__(self, rounds: Rounds, device: str | None = None) -> None:
        """Starts nothing."""
        super().__init__(rounds, "forecast", "forecast.log")
        self.device = device

    def start(self, run: str) -> Job:
        """Starts the forecast of a finished round; an error if anything is being trained or forecast."""
        with self._lock:
            self.refuse_second()
            if not self.rounds.folder(run).is_finished():
                raise NPMatchError(f"{run}: has no model yet")
            return self._spawn(self.command(run), run, None)

    def command(self, run: str) -> list[str]:
        """The command of a forecast, as for a terminal."""
        device = [] if self.device is None else ["--device", self.device]
        return ["npmatch", "forecast", str(self.rounds.out / run), *device]

    def describe(self) -> dict[str, Any]:
        """What is being forecast, or how the last forecast ended, for the page."""
        job = self.running()
        if job is not None:
            return {"state": "running", "round": job.run, "is_stopping": job.was_stopped, **self.progress()}
        last = self.job()
        if last is None or last.was_stopped:
            return {"state": "idle"}
        file = self.rounds.out / last.run / "forecast.json"
        is_done = file.is_file() and file.stat().st_mtime >= last.started
        return {"state": "idle"} if is_done else {"state": "failed", "round": last.run, "message": self.last_error()}

    def found(self, run: str) -> dict[str, Any]:
        """The last forecast of a round in words, and the command that makes it; no words if there is none."""
        found = self.rounds.folder(run).read_forecast()
        words: dict[str, Any] = {"lines": [], "rows": [], "has_figure": False}
        if found is not None and forecast.can_be_read(found):
            lines, rows = forecast.lines(found, self.rounds.out / run), forecast.class_rows(found)
            words = {
                "lines": [printable(line) for line in lines],
                "rows": [[printable(cell) for cell in row] for row in rows],
                "has_figure": True,
            }
        return {"round": run, "columns": forecast.CLASS_COLUMNS, **words, "command": shlex.join(self.command(run))}

    def figure(self, run: str) -> dict[str, str]:
        """The figure of a round's forecast as an SVG file, by its name."""
        found = self.rounds.folder(run).read_forecast()
        return {"forecast": as_svg_file(str(forecast.drawing(found)))} if found and forecast.can_be_read(found) else {}
