"""Training from the page: `npmatch train` as a child process, one at a time.

The process is in a session of its own and outlives the browser and the server. OUT/.training/job.json says which
process it is, what it runs and when it was born: a server that starts later finds it again, and takes no other process
that got the same number for it. The process inherits a lock, so that two servers cannot train at once either.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from npmatch.compare.jobs import ERROR_LINE, TAIL
from npmatch.errors import NPMatchError
from npmatch.files import locked, write_atomically
from npmatch.runs.folder import RunFolder
from npmatch.web.rounds import Rounds

MINUTES = (1, 3, 10, 30, 60)  # that the page offers


@dataclass(frozen=True)
class Job:
    """A training process."""

    pid: int
    born: str  # `process_birth` of the process
    command: list[str]  # as for a terminal
    run: str  # name of the run's folder
    minutes: int | None  # None where a run is resumed
    started: float  # seconds since 1970
    was_stopped: bool = False  # whether somebody has asked it to end

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return process_birth(self.pid) == self.born

    def elapsed(self) -> float:
        """Seconds since it was started."""
        return max(0.0, time.time() - self.started)


class Training:
    """The training of one folder's rounds."""

    def __init__(self, data: Path, rounds: Rounds, device: str | None = None) -> None:
        """`data` is the folder of images; the rounds lie in `rounds.out`."""
        self.data, self.rounds, self.device = data, rounds, device
        self.folder = rounds.out / ".training"
        self._job_file, self.log = self.folder / "job.json", self.folder / "output.log"
        self._child: subprocess.Popen[bytes] | None = None  # kept to be reaped, if this server has started it
        self._lock = Lock()

    def job(self) -> Job | None:
        """The last process that was started, by this server or an earlier one."""
        try:
            return Job(**json.loads(self._job_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def running(self) -> Job | None:
        """The process that is training now."""
        if self._child is not None and self._child.poll() is not None:  # otherwise it would stay as a zombie
            self._child = None
        job = self.job()
        return job if job is not None and job.is_alive() else None

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

    def stop(self) -> None:
        """Asks the process to save a checkpoint and end; it does so after the step that it is taking."""
        with self._lock:
            job = self.running()
            if job is None:
                raise NPMatchError("nothing is being trained")
            self._remember(replace(job, was_stopped=True))
            os.kill(job.pid, signal.SIGTERM)

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

    def refuse_second(self) -> None:
        """An error if something is being trained."""
        job = self.running()
        busy = job.run if job is not None else self.rounds.locked()
        if busy is not None:
            raise NPMatchError(f"{busy} is being trained already; wait for it, or stop it")

    def _spawn(self, command: list[str], run: str, minutes: int | None) -> Job:
        """Starts the process; the lock that it inherits is free again once it has ended."""
        paths = os.pathsep.join(filter(None, sys.path))
        try:
            with locked(self.folder, inherited=True) as lock, open(self.log, "wb") as output:
                child = subprocess.Popen(
                    [sys.executable, "-P", "-m", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                    env={**os.environ, "PYTHONPATH": paths},
                    start_new_session=True,
                    pass_fds=[] if lock is None else [lock],
                )
                job = Job(child.pid, process_birth(child.pid) or "", command, run, minutes, time.time())
                try:
                    self._remember(job)
                except OSError:  # nobody could find it again
                    child.kill()
                    child.wait()
                    raise
        except OSError as error:
            raise NPMatchError(f"{self.folder}: cannot be written ({error.strerror or error})") from error
        self._child = child
        return job

    def _remember(self, job: Job) -> None:
        write_atomically(self._job_file, json.dumps(asdict(job)).encode())

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
        return {**progress, "left": left, "elapsed": job.elapsed(), "is_stopping": job.was_stopped}

    def _outcome(self, job: Job) -> str:
        if RunFolder(self.rounds.out / job.run).is_finished():
            return "finished"
        return "stopped" if job.was_stopped else "failed"

    def _message(self, job: Job) -> str:
        """Why the last training failed, in one line; empty where it did not."""
        if self._outcome(job) != "failed":
            return ""
        lines = [line for line in self._tail().splitlines() if line.strip()]
        errors = [line for line in lines if ERROR_LINE.match(line)]
        return errors[-1].strip().removeprefix("npmatch: ") if errors else "it ended without a message, perhaps killed"

    def _tail(self) -> str:
        try:
            return self.log.read_bytes()[-TAIL:].decode("utf-8", "replace")
        except OSError:
            return ""


def process_birth(pid: int) -> str | None:
    """When a process was born, in words that no other process of this number has; None if it has ended."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None if os.path.exists("/proc/self/stat") else _birth_by_ps(pid)
    if state in "ZX":  # it has ended, and its parent has not looked yet
        return None
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text(encoding='utf-8').strip() if boot.exists() else ''} {facts[18]}".strip()


def _birth_by_ps(pid: int) -> str | None:
    """As `process_birth`, on systems without /proc."""
    words = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    return None if not found or found[0].startswith("Z") else " ".join(found[1:])
