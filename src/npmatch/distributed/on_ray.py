"""Jobs on a Ray cluster that is up: a job is a Ray task with its cores and its GPU as resources."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report this use to its makers

import ray
from ray.exceptions import RayError, RayTaskError

from npmatch.distributed.cluster import Call, Cluster
from npmatch.distributed.jobs import LostWorkerError
from npmatch.errors import NPMatchError

CONNECT_SECONDS = 5.0  # that the head has to answer; Ray itself tries for two minutes

Result = TypeVar("Result")


class RayCluster(Cluster):
    """A connection to a Ray cluster."""

    def __init__(self, name: str, address: str, parallel: int | None, device: str | None, cores: int | None) -> None:
        """`address` is HOST:PORT of the cluster's head, or auto for the one of this machine or of $RAY_ADDRESS."""
        self.is_ours = not ray.is_initialized()
        if self.is_ours:
            connect(name, address)
        try:
            has_gpu = any(machine.get("GPU", 0) >= 1 for machine in machines())
            gpus = int(device.startswith("cuda") if device else has_gpu)
            super().__init__(name, parallel, gpus, cores)
        except NPMatchError:
            self.close()
            raise
        if not self._slots():
            wanted = f"{self.cores} cores" + (" and a GPU" if gpus else "")
            self.warning = f"--cluster {name}: no machine has {wanted} yet; waiting for one (see --cores and --device)"
        # Without max_calls, Ray ends a process after each call with a GPU, and a loaded model with it.
        options = {"num_cpus": self.cores, "num_gpus": gpus, "max_calls": 0}
        # A lost call is sent again by the caller, who can tell whether there is progress.
        self.options = {**options, "max_retries": 0, "scheduling_strategy": "SPREAD"}
        self.remotes: dict[Callable[..., Any], Any] = {}  # Ray sends a function to its workers once for each of these

    def _slots(self) -> int:
        """The number of calls that fit on the machines that are alive."""
        wanted = {"CPU": self.cores, "GPU": self.gpus}
        return sum(
            min(int(machine.get(kind, 0) // number) for kind, number in wanted.items() if number)
            for machine in machines()
        )

    def room(self) -> int:
        """The number of calls that fit on the machines that are alive; at least one, for which a machine may come."""
        return max(1, self._slots())

    def send(self, function: Callable[..., Result], *arguments: Any) -> Call[Result]:
        """Submits a Ray task."""
        if function not in self.remotes:
            self.remotes[function] = ray.remote(**self.options)(function)
        return _RayCall(self.remotes[function].remote(*arguments))

    def close(self) -> None:
        """Disconnects; the cluster stays up."""
        if self.is_ours:
            ray.shutdown()


class _RayCall(Generic[Result]):
    """A Ray task under way."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def done(self) -> bool:
        return bool(ray.wait([self.reference], timeout=0)[0])

    def result(self) -> Result:
        try:
            value: Result = ray.get(self.reference)
            return value
        except RayTaskError as error:  # the function could not be imported there, or has a bug
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise NPMatchError(f"a worker of the Ray cluster failed: {lines[-1].strip()}") from error
        except RayError as error:
            raise LostWorkerError(str(error).strip().splitlines()[0]) from error

    def cancel(self, force: bool = False) -> None:
        ray.cancel(self.reference, force=force)


def connect(name: str, address: str) -> None:
    """Connects this process to a cluster that is up, quietly."""
    if address != "auto":
        _check_answers(name, address)
    try:
        with _kept_sigterm(), _silenced():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            # Ray would print that a machine died to standard output, which is for results; the callers report it.
            ray._private.worker._worker_logs_enabled = False
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        reason = str(error).strip().splitlines()[0]
        hint = "is it the head of a Ray cluster, and does this machine have its token, ~/.ray/auth_token?"
        hint = "start one with: ray start --head" if address == "auto" else hint
        raise NPMatchError(f"--cluster {name}: {reason} ({hint})") from error


def machines() -> list[dict[str, float]]:
    """The resources of each machine of the cluster that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _check_answers(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise NPMatchError(f"--cluster {name}: write ray:HOST:PORT, as `ray start --head` prints it, or ray:auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise NPMatchError(
            f"--cluster {name}: no Ray cluster answers there ({error}); start one on {host} with: ray start --head"
        ) from error


@contextmanager
def _kept_sigterm() -> Iterator[None]:
    """Keeps this process's own handling of SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _silenced() -> Iterator[None]:
    """Hides what Ray's own library writes to standard error: a warning for each second in which it cannot connect."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
