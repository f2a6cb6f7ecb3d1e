"""The processes that train one run together, as torchrun starts them: who is who, and what they decide together.

Without torchrun there is one process and nothing here does anything. All processes run the same program on the same
state; the first alone writes files and speaks.
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

from npmatch.errors import NPMatchError, ToldElsewhereError
from npmatch.version import __version__

T = TypeVar("T")
PATIENCE = 300  # seconds that ranks wait for one another at the start
FAREWELL = 3.0  # and at a bad end, for what the others have to say
LONGEST_TASK = timedelta(days=1)  # of the first alone: a look at millions of images takes longer than gloo waits


_patient: Any = None  # the group once more, for waiting until the first has done its task


@dataclass(frozen=True)
class Share:
    """Which rows of a global batch are one process's: equal blocks, in the order of the ranks."""

    rank: int = 0
    world: int = 1

    def block(self, size: int) -> slice:
        """Where its rows lie among the global ones, given how many a process has."""
        return slice(self.rank * size, (self.rank + 1) * size)

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """Its rows of the global ones."""
        return rows[self.block(len(rows) // self.world)]


def is_initialized() -> bool:
    """Whether there is a group of processes, be it of one."""
    return dist.is_available() and dist.is_initialized()


def local_share() -> Share:
    """This process's place in the group."""
    return Share(dist.get_rank(), dist.get_world_size()) if is_initialized() else Share()


def get_rank() -> int:
    """This process's number, from 0."""
    return local_share().rank


def world_size() -> int:
    """How many processes there are."""
    return local_share().world


def is_rank_zero() -> bool:
    """Whether this process is the one that writes files and speaks to the user."""
    return get_rank() == 0 if is_initialized() or not launched_by_torchrun() else os.environ["RANK"] == "0"


def launched_by_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def local_world_size() -> int:
    """How many of the processes are on this machine, this one included."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun says so


def restarted_by_torchrun() -> bool:
    """Whether torchrun starts this process anew because one of the group had died."""
    return launched_by_torchrun() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def launcher_id() -> str:
    """Which torchrun started this process: the same over its restarts, and no other's; nothing without one."""
    if not launched_by_torchrun():
        return ""
    # It keeps a folder of its own for what its processes end with, RUN_ID_RANDOM/attempt_0/LOCAL_RANK/error.json.
    folder, _, attempt = os.environ.get("TORCHELASTIC_ERROR_FILE", "").partition("/attempt_")
    if attempt:
        return f"torchrun {os.path.basename(folder)}"
    return f"torchrun {os.environ['TORCHELASTIC_RUN_ID']}, process {os.getppid()} on {socket.gethostname()}"


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Joins the processes torchrun started, inside; nothing where it started none or they are joined already."""
    if not launched_by_torchrun() or is_initialized():
        yield
        return
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.set_device(device)
    # Decisions of the host travel by gloo even beside NCCL, so that they never wait for the device.
    store, number, count = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    corner = _unused_corner(store, number, count)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        store=corner,
        rank=number,
        world_size=count,
        device_id=device if on_cuda else None,
    )
    global _patient
    try:
        _refuse_unequal_versions()
        _patient = dist.new_group(backend="gloo", timeout=LONGEST_TASK) if count > 1 else None
        yield
    except (NPMatchError, RuntimeError) as error:
        if not (isinstance(error, NPMatchError) or _is_lost_contact(error)):
            raise  # a defect, or no memory: the others, who lose contact, end after it
        if not on_cuda:  # at once, so that whoever waits for this rank in a collective learns of it
            dist.destroy_process_group()
        own = "" if isinstance(error, ToldElsewhereError) or not isinstance(error, NPMatchError) else str(error)
        said = _say(corner, number, count, own)
        if on_cuda and all(text is not None for text in said):  # nobody is left in a collective, which would not end
            dist.destroy_process_group()
        ending = _ending(error, number, said)
        raise ending from (None if ending is error else error)
    finally:
        _patient = None
    dist.destroy_process_group()


def _refuse_unequal_versions() -> None:
    """Ranks that compute differently would drift apart, or not understand one another at all."""
    versions = all_gather_object(f"npmatch {__version__} with torch {torch.__version__.split('+')[0]}")
    for number, other in enumerate(versions):
        if other != versions[0]:
            raise NPMatchError(
                f"rank {number} runs {other} and the first rank {versions[0]}; install the same on every machine"
            )


def _is_lost_contact(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone; gloo says so in words of its own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _say(store: Any, number: int, count: int, text: str) -> list[str | None]:
    """Tells the others what this rank has to tell the user, and waits a moment to hear it of them; None: not heard."""
    said: list[str | None] = [None] * count
    try:
        store.set(f"npmatch/end/{number}", text)
        deadline = time.monotonic() + FAREWELL
        while None in said and time.monotonic() < deadline:
            for other in (other for other in range(count) if said[other] is None):
                if store.check([f"npmatch/end/{other}"]):
                    said[other] = store.get(f"npmatch/end/{other}").decode()
            time.sleep(0.02)
    except RuntimeError:  # the store ended with whoever held it
        pass
    return said


def _ending(error: Exception, number: int, said: list[str | None]) -> NPMatchError:
    """What this rank raises, so that each problem is told once, and by the first rank where that knows of it."""
    if isinstance(error, ToldElsewhereError):
        return error
    if isinstance(error, NPMatchError):
        return ToldElsewhereError(str(error)) if number and said[0] == str(error) else error
    cause = next((text for text in said if text), None)
    if cause is not None or (number and said[0] is not None):
        return ToldElsewhereError(cause or str(error))
    return NPMatchError(
        f"lost contact with another rank, which ended or cannot be reached ({str(error).splitlines()[0]}); what it "
        "said itself is the cause"
    )


def _unused_corner(store: Any, number: int, count: int) -> Any:
    """A part of the store that is new. torchrun keeps one store over restarts, and the dead's addresses stand in it.

    Restarts are counted by each machine for itself, so ranks find one another by names they have just made up: the
    first answers every name it finds, that of a dead rank too, until each of the others has said that it has heard.
    """
    name = uuid.uuid4().hex
    if number:
        store.set(f"npmatch/here/{number}", name)
        name = store.get(f"npmatch/answer/{name}").decode()  # waits for it
        store.set(f"npmatch/heard/{name}/{number}", "")
        return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    deadline, missing = time.monotonic() + PATIENCE, list(range(1, count))
    while missing:
        for other in missing:
            if store.check([f"npmatch/here/{other}"]):
                store.set(f"npmatch/answer/{store.get(f'npmatch/here/{other}').decode()}", name)
        missing = [other for other in missing if not store.check([f"npmatch/heard/{name}/{other}"])]
        if time.monotonic() > deadline:
            raise NPMatchError(f"ranks {', '.join(map(str, missing))} of {count} did not come within {PATIENCE} s")
        time.sleep(0.02)
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def on_rank_zero(make: Callable[[], T]) -> T:
    """What the first process makes, for all; where it meets an error of the user's, all end with it."""
    if world_size() == 1:
        return make()
    outcome: list[Any] = [None]
    problem: NPMatchError | None = None
    if is_rank_zero():
        try:
            outcome = [(make(), None)]
        except NPMatchError as error:
            outcome, problem = [(None, str(error))], error
    dist.broadcast_object_list(outcome, src=0, group=_patient, device=torch.device("cpu"))
    if problem is not None:
        raise problem
    made, message = outcome[0]
    if message is not None:
        raise ToldElsewhereError(message)
    return cast(T, made)


def all_gather_object(mine: T) -> list[T]:
    """What each process has, in the order of the ranks, for all."""
    if world_size() == 1:
        return [mine]
    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, mine)
    return found


def all_reduce_max(number: int) -> int:
    """The largest of the processes' numbers."""
    if world_size() == 1:
        return number
    shared = torch.tensor(number)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return int(shared)


def barrier() -> None:
    """Returns once every process has come here."""
    all_reduce_max(0)
