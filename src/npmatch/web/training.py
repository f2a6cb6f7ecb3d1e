"""Training from the page: `npmatch train` as a child process, with its progress and how it ended."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from npmatch.errors import NPMatchError
from npmatch.runs.folder import RunFolder
from npmatch.web.processes import ChildProcess, Job, process_birth
from npmatch.web.rounds import Rounds

__all__ = ["MINUTES", "Job", "Training", "process_birth"]
MINUTES = (1, 3, 10, 30, 60)  # that the page offers


class Training(ChildProcess):
    """The training of one folder's rounds."""

    def __init__(self, data: Path, rounds: Rounds, device: str | None = None) -> None:
        """`data` is the folder of images; the rounds lie in `rounds.out`."""
        super().__init__(rounds, "job", "output.log")
        self.data, self.device = data, device

    def start(self, minutes: int) -> Job:
        """Starts a new round; an error if one is being trained."""
        if minutes not in MINUTES:
            raise NPMatchError(f"minutes={minutes}: choose one of {', '.join(map(str, MINUTES))}")
        with self._lock:
            self.refuse_second()
            run = self.rounds.next_name()
            return self._spawn(self.command(minutes, run), run, minutes)

    def resume(self, run: str) -> Job:
        """Goes on with a round that was stopped."""
        with self._lock:
            self.refuse_second()
            folder = self.rounds.folder(run)
            if folder.is_finished():
                raise NPMatchError(f"{run}: is finished; start a new round")
            return self._spawn(self.resume_command(run), run, None)

    def command(self, minutes: int, run: str | None = None) -> list[str]:
        """The command of a new round, as for a terminal."""
        out = self.rounds.out / (run or self.rounds.next_name())
        words = ["npmatch", "train", "--data", str(self.data), "--minutes", str(minutes), "--out", str(out)]
        return [*words, *self._device()]

    def resume_command(self, run: str) -> list[str]:
        """The command that goes on with a round."""
        return ["npmatch", "train", "--out", str(self.rounds.out / run), "--resume", *self._device()]

    def _device(self) -> list[str]:
        return [] if self.device is None else ["--device", self.device]

    def describe(self) -> dict[str, Any]:
        """What is being trained, or how the last training ended, for the page."""
        job = self.running()
        if job is not None:
            return {"state": "running", **self._progress(job), "command": shlex.join(job.command)}
        by_hand = self.rounds.locked()
        if by_hand is not None:  # started in a terminal
            return {"state": "elsewhere", **self.rounds.progress(by_hand)}
        last = self.job()
        if last is None:
            return {"state": "idle"}
        can_resume = self._outcome(last) != "finished" and last.run in self.rounds.names()
        facts = {"round": last.run, "message": self._message(last), "can_resume": can_resume}
        return {"state": self._outcome(last), **facts, "command": shlex.join(self.resume_command(last.run))}

    def _progress(self, job: Job) -> dict[str, Any]:
        """Step, and seconds left: those of the steps once some are done, of the minutes before."""
        progress = self.rounds.progress(job.run)
        left = progress.pop("left")
        if left is None and job.minutes is not None:
            left = max(0.0, 60 * job.minutes - job.elapsed())
        counting = self.progress()  # before the first step: checks and features
        facts = {"elapsed": job.elapsed(), "is_stopping": job.was_stopped, "counting": counting}
        return {**progress, "left": left, **facts}

    def _outcome(self, job: Job) -> str:
        if RunFolder(self.rounds.out / job.run).is_finished():
            return "finished"
        return "stopped" if job.was_stopped else "failed"

    def _message(self, job: Job) -> str:
        return self.last_error() if self._outcome(job) == "failed" else ""
