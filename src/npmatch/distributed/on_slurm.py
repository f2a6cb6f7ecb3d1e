"""Jobs on a Slurm cluster, by submitit: a job is a batch job of a partition, with its cores and its GPU."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError
from submitit.slurm.slurm import SlurmInfoWatcher

from npmatch.distributed.cluster import Call, Cluster
from npmatch.distributed.jobs import LostWorkerError
from npmatch.errors import NPMatchError

EXECUTOR = "slurm"  # of submitit
WITHOUT_LIMIT = 30 * 24 * 60  # minutes that a job asks for on a partition without a time limit
CALLS = 16  # of `predict` at the same time, unless --jobs says otherwise
RULE = "-" * 22  # before and after the traceback in submitit's errors
TIME_IS_UP = "submitit.core.utils.UncompletedJobError"  # what a batch job reports shortly before Slurm ends it
STATES_EVERY = 60  # seconds between two questions to Slurm about all jobs; results are noticed sooner

Result = TypeVar("Result")


class SlurmCluster(Cluster):
    """A partition of a Slurm cluster."""

    files_per_call = 16_384  # a batch job starts a Python process and loads the model
    poll = 2.0  # each look at a job asks the file server

    def __init__(
        self,
        name: str,
        partition: str,
        folder: Path,
        parallel: int | None,
        device: str | None,
        cores: int | None,
    ) -> None:
        """`folder`, on storage that all machines share, gets submitit's files."""
        has_gpu, minutes = describe_partition(name, partition)
        gpus = int(device.startswith("cuda") if device else has_gpu)
        super().__init__(name, parallel, gpus, cores)
        self.folder = folder.absolute()
        submitit.SlurmJob.watcher = SlurmInfoWatcher(delay_s=STATES_EVERY)
        self.executor = submitit.AutoExecutor(self.folder, cluster=EXECUTOR)
        self.executor.update_parameters(
            name="npmatch",
            timeout_min=minutes,
            nodes=1,
            tasks_per_node=1,
            cpus_per_task=self.cores,
            slurm_partition=partition,
            slurm_srun_args=[f"--cpus-per-task={self.cores}"],  # which srun does not take from its batch job
            **({"gpus_per_node": gpus} if gpus else {}),
        )

    def room(self) -> int:
        """The number of batch jobs at the same time; Slurm queues those for which it has no machine."""
        return min(self.parallel, CALLS)

    def send(self, function: Callable[..., Result], *arguments: Any) -> Call[Result]:
        """Submits a batch job."""
        try:
            return _SlurmCall(self.executor.submit(function, *arguments))
        except (OSError, RuntimeError, FailedSubmissionError) as error:
            reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), "no reason given")
            raise NPMatchError(f"--cluster {self.name}: sbatch refused the job ({reason.strip()})") from error

    def close(self) -> None:
        """Removes submitit's folder if nothing is left in it."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class _SlurmCall(Generic[Result]):
    """A batch job under way."""

    def __init__(self, job: submitit.Job[Any]) -> None:
        self.job = job
        self.kept: list[Result] = []

    def done(self) -> bool:
        return bool(self.kept) or self.job.done()

    def result(self) -> Result:
        if not self.kept:
            try:
                self.kept.append(self.job.result())
            except FailedJobError as error:
                lines = [line for line in str(error).split(RULE)[1].splitlines() if line.strip()]  # of the traceback
                if lines[-1].startswith(TIME_IS_UP):
                    raise LostWorkerError(f"the time of batch job {self.job.job_id} was up") from error
                raise NPMatchError(f"batch job {self.job.job_id} failed: {lines[-1].strip()}") from error
            except UncompletedJobError as error:  # there is no result, because the machine died
                raise LostWorkerError(f"batch job {self.job.job_id} ended: {self.job.state}") from error
            for file in self.job.paths.folder.glob(f"{self.job.job_id}_*"):  # otherwise millions would gather there
                file.unlink(missing_ok=True)
        return self.kept[0]

    def cancel(self, force: bool = False) -> None:
        self.job.cancel(check=False)  # Slurm sends SIGTERM, and kills what does not end soon


def describe_partition(name: str, partition: str) -> tuple[bool, int]:
    """Whether a partition has GPUs, and its time limit in minutes."""
    if shutil.which("sbatch") is None or shutil.which("sinfo") is None:
        raise NPMatchError(f"--cluster {name}: this machine has no sbatch; start the command where Slurm is installed")
    asked = ["sinfo", "--noheader", f"--partition={partition}", "--format=%l %G"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    lines = answer.stdout.split("\n")[:-1]
    if answer.returncode or not lines:
        reason = (answer.stderr.strip().splitlines() or [f"there is no partition '{partition}'; see sinfo"])[-1]
        raise NPMatchError(f"--cluster {name}: {reason}")
    return any("gpu" in line.partition(" ")[2] for line in lines), as_minutes(lines[0].partition(" ")[0])


def as_minutes(limit: str) -> int:
    """Slurm's D-HH:MM:SS, HH:MM:SS or MM:SS in minutes; anything else is no limit."""
    days, _, clock = limit.rpartition("-")
    try:
        *hours, minutes, _ = map(int, clock.split(":"))
        return int(days or 0) * 24 * 60 + 60 * (hours[0] if hours else 0) + minutes or 1
    except ValueError:
        return WITHOUT_LIMIT
