"""The device that a process computes on."""

from __future__ import annotations

import os

import torch

from npmatch.distributed.ranks import launched_by_torchrun
from npmatch.errors import NPMatchError


def choose_device(name: str | None) -> torch.device:
    """The device called `name`, by default CUDA where torch finds it; torchrun's ranks each get a GPU of their own."""
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise NPMatchError("--device cuda: torch finds no CUDA device here; use --device cpu")
    if device.type != "cuda" or device.index is not None or not launched_by_torchrun():
        return device
    local_rank, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local_rank >= count:
        raise NPMatchError(
            f"torchrun starts more processes here than there are CUDA devices ({count}); use --nproc-per-node={count}"
        )
    return torch.device("cuda", local_rank)
