"""Which device a process computes on."""

from __future__ import annotations

import os

import torch

from npmatch.distributed.ranks import launched_by_torchrun
from npmatch.errors import NPMatchError


def choose_device(name: str | None) -> torch.device:
    """The device asked for; where none was, CUDA if there is one."""
    chosen = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise NPMatchError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return local_device(chosen)


def local_device(device: torch.device) -> torch.device:
    """Of several GPUs on a machine, the one that is this process's."""
    if device.type != "cuda" or device.index is not None or not launched_by_torchrun():
        return device
    index, found = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if index >= found:
        raise NPMatchError(
            f"torchrun starts more processes here than there are CUDA devices ({found}); use --nproc-per-node={found}"
        )
    return torch.device("cuda", index)
