"""Jobs on many machines, which an engine finds: Ray or Slurm. All of them see the same files under the same paths.

A cluster runs commands like this machine (`Cluster.start`), and calls functions (`Cluster.submit`); `map_in_order` maps
one over the parts of a long list. An engine only finds a machine and says how a call ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from npmatch.distributed.jobs import TRIES, Command, Engine, LostWorkerError, Process, ended_by
from npmatch.distributed.workers import call_on_worker, run_command
from npmatch.errors import NPMatchError
from npmatch.version import __version__

CORES_BESIDE_GPU = 8  # default number of cores of a job that has a GPU, for decoding images

Part = TypeVar("Part")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Call(Protocol[Result_co]):
    """A call of a function under way on a cluster."""

    def done(self) -> bool:
        """Whether it has ended in any way."""

    def result(self) -> Result_co:
        """What the function returned; raises a LostWorkerError where the machine died. Waits for the end."""

    def cancel(self, force: bool = False) -> None:
        """Interrupts the function, which may still clean up; with `force`, its process is killed."""


class Cluster(Engine):
    """Calls functions and runs commands on many machines; each gets `cores` cores and `gpus` GPUs."""

    warning: str | None = None  # a line for the user
    campaign: Path | None = None  # folder that the user's command has locked, for workers to check that they see it
    files_per_call = 1024  # the images that `predict` sends together: more where a call takes long to start

    def __init__(self, name: str, parallel: int | None, gpus: int, cores: int | None) -> None:
        """`name` is what the user typed; without `parallel`, the engine gets all commands and queues them."""
        if cores is not None and cores < 1:
            raise NPMatchError(f"cores={cores}: at least one is needed")
        self.name, self.gpus = name, gpus
        self.parallel = sys.maxsize if parallel is None else parallel
        self.cores = cores or (CORES_BESIDE_GPU if gpus else 1)

    @property
    def device(self) -> str:
        """The device that jobs compute on."""
        return "cuda" if self.gpus else "cpu"

    @abstractmethod
    def room(self) -> int:
        """The number of calls that can be carried out at the same time; at least one."""

    @abstractmethod
    def send(self, function: Callable[..., Result], *arguments: Any) -> Call[Result]:
        """Hands a call over to the engine."""

    def close(self) -> None:
        """Ends the connection to the engine."""

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Call[Result]:
        """Calls a function of this package in this working folder on some machine."""
        return _Checked(self.send(call_on_worker, __version__, os.getcwd(), function, arguments))

    def start(self, command: Command) -> Process:
        """Queues a command; it has started once its log exists."""
        command.log.parent.mkdir(parents=True, exist_ok=True)
        command.log.unlink(missing_ok=True)
        order = (command.words, command.log, command.folder, self.cores, self.campaign)
        return _Remote(self.submit(run_command, *order), command.log)

    def __enter__(self) -> Self:
        """The cluster itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the connection to the engine."""
        self.close()


class _Checked(Generic[Result]):
    """A call through `call_on_worker`, which returns problems that the user can solve instead of raising them."""

    def __init__(self, call: Call[tuple[str | None, Result]]) -> None:
        self.call, self.done, self.cancel = call, call.done, call.cancel

    def result(self) -> Result:
        problem, value = self.call.result()
        if problem is not None:
            raise NPMatchError(problem)
        return value


class _Remote:
    """A command that a worker of a cluster runs."""

    def __init__(self, call: Call[int], log: Path) -> None:
        self.call, self.log = call, log
        self.asked_to_stop = self.is_dropped = False

    def has_started(self) -> bool:
        return self.log.exists()

    def poll(self) -> int | None:
        if self.is_dropped:
            return 128 + signal.SIGTERM
        if not self.call.done():
            return None
        code = self.call.result()
        number = -code if code < 0 else code - 128
        if not self.asked_to_stop and (code < 0 or number in (signal.SIGINT, signal.SIGTERM)):
            raise LostWorkerError(ended_by(number))  # its machine is shut down, or it took too much memory
        return code

    def stop(self) -> None:
        self.asked_to_stop = True
        self.is_dropped = not self.has_started()  # then there is no state to wait for
        self.call.cancel()

    def kill(self) -> None:
        self.call.cancel(force=True)


def map_in_order(cluster: Cluster, function: Callable[[Part], Result], parts: Iterable[Part]) -> Generator[Result]:
    """`function(part)` for each part, in order, each one once; a part whose machine died is sent again.

    Few parts are under way, so that memory does not grow with their number: twice as many as can be carried out at the
    same time, because the next one to be handed out may be the slowest.
    """
    waiting, under_way = iter(parts), deque[tuple[Part, Call[Result]]]()
    try:
        while True:
            most = min(2 * cluster.room(), cluster.parallel)
            for part in islice(waiting, max(0, most - len(under_way))):
                under_way.append((part, cluster.submit(function, part)))
            if not under_way:
                return
            yield _result_of_first(cluster, function, under_way)
    finally:
        for _, call in under_way:
            with contextlib.suppress(Exception):  # it may have ended, or the connection with it
                call.cancel()


def _result_of_first(
    cluster: Cluster, function: Callable[[Part], Result], under_way: deque[tuple[Part, Call[Result]]]
) -> Result:
    """Waits for the first part and takes it out of the queue."""
    for losses in range(1, TRIES + 1):
        part, call = under_way[0]
        try:
            while not call.done():
                time.sleep(cluster.poll / 20)
            result = call.result()
            under_way.popleft()
            return result
        except LostWorkerError as error:
            if losses == TRIES:
                raise NPMatchError(
                    f"--cluster {cluster.name}: a part lost its worker {TRIES} times: {error}"
                ) from error
            under_way[0] = part, cluster.submit(function, part)
    raise AssertionError("unreachable: the last loss is an error")


def open_cluster(
    name: str, folder: Path, parallel: int | None = None, device: str | None = None, cores: int | None = None
) -> Cluster:
    """The cluster that a user calls `ray:ADDRESS` or `slurm:PARTITION`; `folder` is for the engine's own files.

    Jobs have a GPU each if the device is cuda, or if none is named and the cluster has GPUs.
    """
    kind, _, place = name.partition(":")
    if kind not in ("ray", "slurm") or not place:
        raise NPMatchError(f"--cluster {name}: write ray:HOST:PORT, ray:auto or slurm:PARTITION")
    if parallel is not None and parallel < 1:
        raise NPMatchError(f"jobs={parallel}: at least one is needed")
    if kind == "ray":
        _require("ray", name, "cluster")
        from npmatch.distributed.on_ray import RayCluster

        return RayCluster(name, place, parallel, device, cores)
    _require("submitit", name, "slurm")
    from npmatch.distributed.on_slurm import SlurmCluster

    return SlurmCluster(name, place, folder, parallel, device, cores)


def _require(package: str, name: str, extra: str) -> None:
    if find_spec(package) is None:
        raise NPMatchError(f"--cluster {name}: needs {package}; install it with: pip install 'npmatch[{extra}]'")
