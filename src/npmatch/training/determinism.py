"""Bit-equal runs on a GPU: torch's deterministic algorithms, for the length of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from npmatch.types import NPMatchError


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """With `wanted`, only operations that give the same bits every time; what was set before comes back."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise NPMatchError(f"training.deterministic=true: {str(error).splitlines()[0]}; set it to false") from error
    finally:
        torch.use_deterministic_algorithms(before[0])
        cudnn.deterministic, cudnn.benchmark = before[1:]
