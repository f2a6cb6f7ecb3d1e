"""Child processes of the page of a folder: `npmatch train` and `npmatch forecast`, one at a time.

A process is in a session of its own and outlives the browser and the server. A file in OUT/.training says which process
it is, what it runs and when it was born: a server that starts later finds it again, and takes no other process that got
the same number for it. The process inherits a lock, so that two servers cannot start one each either.
"""

from __future__ import annotations

import json
import os
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
from npmatch.training.display import PROGRESS_VARIABLE
from npmatch.web.rounds import Rounds


@dataclass(frozen=True)
class Job:
    """A process that the page has started."""

    pid: int
    born: str  # `process_birth` of the process
    command: list[str]  # as for a terminal
    run: str  # name of the run's folder
    minutes: int | None  # None where a run is resumed, or forecast
    started: float  # seconds since 1970
    was_stopped: bool = False  # whether somebody has asked it to end

    @property
    def is_forecast(self) -> bool:
        """Whether it is a forecast; else it trains."""
        return self.command[1:2] == ["forecast"]

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return process_birth(self.pid) == self.born

    def elapsed(self) -> float:
        """Seconds since it was started."""
        return max(0.0, time.time() - self.started)


class ChildProcess:
    """The last process of one kind that was started for a folder."""

    doing = "trained"  # what is being done to a round

    def __init__(self, rounds: Rounds, name: str, log: str) -> None:
        """`name` and `log` are those of its files in OUT/.training; all kinds share one lock."""
        self.rounds = rounds
        self.folder = rounds.out / ".training"
        self._job_file, self.log = self.folder / f"{name}.json", self.folder / log
        self._progress_file = self.folder / f"{name}-progress.json"
        self._child: subprocess.Popen[bytes] | None = None  # kept to be reaped, if this server has started it
        self._lock = Lock()

    def job(self) -> Job | None:
        """The last process that was started, by this server or an earlier one."""
        return _read_job(self._job_file)

    def running(self) -> Job | None:
        """The process that is at work now."""
        if self._child is not None and self._child.poll() is not None:  # otherwise it would stay as a zombie
            self._child = None
        job = self.job()
        return job if job is not None and job.is_alive() else None

    def stop(self) -> None:
        """Asks the process to end; a training saves a checkpoint after the step that it is taking."""
        with self._lock:
            job = self.running()
            if job is None:
                raise NPMatchError(f"nothing is being {self.doing}")
            self._remember(replace(job, was_stopped=True))
            os.kill(job.pid, signal.SIGTERM)

    def refuse_second(self) -> None:
        """An error if something is being trained or forecast."""
        self.running()  # reaps a process that has ended
        jobs = [_read_job(file) for file in sorted(self.folder.glob("*.json"))]
        job = next((job for job in jobs if job is not None and job.is_alive()), None)
        busy = job.run if job is not None else self.rounds.locked()
        if busy is not None:
            doing = "forecast" if job is not None and job.is_forecast else "trained"
            raise NPMatchError(f"{busy} is being {doing} already; wait for it, or stop it")

    def _spawn(self, command: list[str], run: str, minutes: int | None) -> Job:
        """Starts the process; the lock that it inherits is free again once it has ended."""
        paths = os.pathsep.join(filter(None, sys.path))
        try:
            self._progress_file.unlink(missing_ok=True)
            with locked(self.folder, inherited=True) as lock, open(self.log, "wb") as output:
                child = subprocess.Popen(
                    [sys.executable, "-P", "-m", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                    env={**os.environ, "PYTHONPATH": paths, PROGRESS_VARIABLE: str(self._progress_file)},
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

    def progress(self) -> dict[str, Any]:
        """What the process counts at the moment, how far it is, and the seconds left; empty if it counts nothing."""
        try:
            found = json.loads(self._progress_file.read_text(encoding="utf-8"))
            done, total, seconds = (float(found[key]) for key in ("done", "total", "seconds"))
            left = seconds / done * (total - done) if done else None
            return {"title": str(found["title"]), "done": done, "total": total, "left": left}
        except (OSError, ValueError, TypeError, LookupError):
            return {}

    def last_error(self) -> str:
        """Why the last process failed, in one line."""
        lines = [line for line in self._tail().splitlines() if line.strip()]
        errors = [line for line in lines if ERROR_LINE.match(line)]
        return errors[-1].strip().removeprefix("npmatch: ") if errors else "it ended without a message, perhaps killed"

    def _tail(self) -> str:
        try:
            return self.log.read_bytes()[-TAIL:].decode("utf-8", "replace")
        except OSError:
            return ""


def _read_job(file: Path) -> Job | None:
    try:
        return Job(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


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
