"""The ranks of a run, as torchrun starts them: rank, world size, collectives on Python objects, one error message.

All ranks run the same program on the same state. Rank zero alone writes files and prints. Without torchrun there is one
process, and every function here returns at once.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from npmatch.errors import NPMatchError, ReportedElsewhereError
from npmatch.version import __version__

T = TypeVar("T")
RENDEZVOUS_TIMEOUT = 300  # seconds that rank zero waits for the other ranks at the start
MESSAGE_TIMEOUT = 3.0  # seconds that a failing rank waits for the error messages of the others
# Rank zero alone may look at millions of images, which takes longer than a gloo collective waits by default.
RANK_ZERO_TIMEOUT = timedelta(days=1)

_rank_zero_group: Any = None  # all ranks, with RANK_ZERO_TIMEOUT; used by on_rank_zero


@dataclass(frozen=True)
class Share:
    """One rank's share of a global batch: equal blocks of rows, in the order of the ranks."""

    rank: int = 0
    world: int = 1

    def block(self, size: int) -> slice:
        """Position of this rank's rows in the global batch, where each rank has `size` rows."""
        return slice(self.rank * size, (self.rank + 1) * size)

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """This rank's n rows of the global batch's W·n."""
        return rows[self.block(len(rows) // self.world)]


def is_initialized() -> bool:
    """Whether a process group exists, which may have one rank only."""
    return dist.is_available() and dist.is_initialized()


def local_share() -> Share:
    """This process's rank and the world size."""
    return Share(dist.get_rank(), dist.get_world_size()) if is_initialized() else Share()


def world_size() -> int:
    """Number of ranks."""
    return local_share().world


def is_rank_zero() -> bool:
    """Whether this process writes files and prints; also known before the process group exists."""
    return local_share().rank == 0 if is_initialized() or not launched_by_torchrun() else os.environ["RANK"] == "0"


def launched_by_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def local_world_size() -> int:
    """Number of ranks on this machine, from torchrun's environment variable."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def restarted_by_torchrun() -> bool:
    """Whether torchrun has restarted this process because a rank of its group died."""
    return launched_by_torchrun() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def launcher_id() -> str:
    """Identifies the torchrun that started this process, unchanged over its restarts; empty without torchrun."""
    if not launched_by_torchrun():
        return ""
    # Each torchrun has its own folder for error files: RUN_ID_RANDOM/attempt_0/LOCAL_RANK/error.json.
    folder, _, attempt = os.environ.get("TORCHELASTIC_ERROR_FILE", "").partition("/attempt_")
    if attempt:
        return f"torchrun {os.path.basename(folder)}"
    return f"torchrun {os.environ['TORCHELASTIC_RUN_ID']}, process {os.getppid()} on {socket.gethostname()}"


def on_rank_zero(make: Callable[[], T]) -> T:
    """Calls `make` on rank zero and returns its result on every rank; an NPMatchError in it ends every rank."""
    if world_size() == 1:
        return make()
    outcome: list[Any] = [None]
    problem: NPMatchError | None = None
    if is_rank_zero():
        try:
            outcome = [(make(), None)]
        except NPMatchError as error:
            outcome, problem = [(None, str(error))], error
    dist.broadcast_object_list(outcome, src=0, group=_rank_zero_group, device=torch.device("cpu"))
    if problem is not None:
        raise problem
    result, message = outcome[0]
    if message is not None:
        raise ReportedElsewhereError(message)
    return cast(T, result)


def all_gather_object(local: T) -> list[T]:
    """The `local` objects of all ranks, in the order of the ranks."""
    if world_size() == 1:
        return [local]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, local)
    return gathered


def all_reduce_max(number: int) -> int:
    """The largest `number` of all ranks."""
    if world_size() == 1:
        return number
    largest = torch.tensor(number)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


def barrier() -> None:
    """Returns once every rank has called it."""
    all_reduce_max(0)


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Context with torchrun's process group; does nothing without torchrun or inside another process_group.

    Where a rank fails with an NPMatchError, or because another rank is gone, all ranks end and one of them reports why.
    """
    if not launched_by_torchrun() or is_initialized():
        yield
        return
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.set_device(device)
    torchrun_store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    store = _fresh_store(torchrun_store, rank, size)
    dist.init_process_group(
        # Objects of the host travel by gloo even beside NCCL, so that they never wait for the device.
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        device_id=device if on_cuda else None,
    )
    global _rank_zero_group
    try:
        _refuse_unequal_versions()
        _rank_zero_group = dist.new_group(backend="gloo", timeout=RANK_ZERO_TIMEOUT) if size > 1 else None
        yield
    except (NPMatchError, RuntimeError) as error:
        if not (isinstance(error, NPMatchError) or _is_lost_contact(error)):
            raise  # a bug or no memory left; the other ranks lose contact with this one and end too
        if not on_cuda:  # before the exchange, so that ranks that wait in a collective fail at once
            dist.destroy_process_group()
        is_own = isinstance(error, NPMatchError) and not isinstance(error, ReportedElsewhereError)
        messages = _exchange_messages(store, rank, size, str(error) if is_own else "")
        if on_cuda and None not in messages:  # with a rank still in an NCCL collective this would never return
            dist.destroy_process_group()
        ending = _error_to_raise(error, rank, messages)
        raise ending from (None if ending is error else error)
    finally:
        _rank_zero_group = None
    dist.destroy_process_group()


def _fresh_store(store: Any, rank: int, size: int) -> Any:
    """A new prefix of torchrun's store, agreed on by all ranks.

    torchrun keeps one store over restarts, and it still holds the addresses of dead ranks. Each machine counts restarts
    for itself, so the count cannot be the prefix. Instead each rank publishes a random name; rank zero answers every
    name with its own, also those of dead ranks, until each of the living ranks has confirmed.
    """
    name = uuid.uuid4().hex
    if rank:
        store.set(f"npmatch/here/{rank}", name)
        name = store.get(f"npmatch/answer/{name}").decode()  # waits for the answer
        store.set(f"npmatch/heard/{name}/{rank}", "")
        return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    deadline, missing = time.monotonic() + RENDEZVOUS_TIMEOUT, list(range(1, size))
    while missing:
        for other in missing:
            if store.check([f"npmatch/here/{other}"]):
                store.set(f"npmatch/answer/{store.get(f'npmatch/here/{other}').decode()}", name)
        missing = [other for other in missing if not store.check([f"npmatch/heard/{name}/{other}"])]
        if time.monotonic() > deadline:
            ranks = ", ".join(map(str, missing))
            raise NPMatchError(f"ranks {ranks} of {size} did not connect within {RENDEZVOUS_TIMEOUT} s")
        time.sleep(0.02)
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def _refuse_unequal_versions() -> None:
    """Ranks of different versions would compute different results, or fail to understand one another."""
    versions = all_gather_object(f"npmatch {__version__} with torch {torch.__version__.split('+')[0]}")
    for rank, version in enumerate(versions):
        if version != versions[0]:
            raise NPMatchError(
                f"rank {rank} runs {version} and rank 0 {versions[0]}; install the same version on every machine"
            )


def _is_lost_contact(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone; gloo raises a RuntimeError that names gloo."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _exchange_messages(store: Any, rank: int, size: int, message: str) -> list[str | None]:
    """The error message of each rank, "" where it reports none and None where it did not answer in time."""
    messages: list[str | None] = [None] * size
    try:
        store.set(f"npmatch/end/{rank}", message)
        deadline = time.monotonic() + MESSAGE_TIMEOUT
        while None in messages and time.monotonic() < deadline:
            for other in (other for other in range(size) if messages[other] is None):
                if store.check([f"npmatch/end/{other}"]):
                    messages[other] = store.get(f"npmatch/end/{other}").decode()
            time.sleep(0.02)
    except RuntimeError:  # the process that held the store has ended
        pass
    return messages


def _error_to_raise(error: Exception, rank: int, messages: list[str | None]) -> NPMatchError:
    """The error with which this rank ends, so that each problem is reported once, by rank zero if it knows of it."""
    if isinstance(error, ReportedElsewhereError):
        return error
    if isinstance(error, NPMatchError):
        return ReportedElsewhereError(str(error)) if rank and messages[0] == str(error) else error
    cause = next((message for message in messages if message), None)
    if cause is not None or (rank and messages[0] is not None):
        return ReportedElsewhereError(cause or str(error))
    return NPMatchError(
        f"lost contact with another rank, which ended or cannot be reached ({str(error).splitlines()[0]}); the "
        "messages of that rank name the cause"
    )
