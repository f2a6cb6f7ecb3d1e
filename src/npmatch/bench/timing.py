"""How long something takes, on either kind of device."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch


def seconds_per_call(
    run: Callable[[], object], device: str, repeats: int = 5, calls: int = 1, warm_up: int = 2
) -> float:
    """The median over `repeats` of the mean over `calls`; a GPU has finished when a clock is read."""
    for _ in range(warm_up):
        run()
    taken = []
    for _ in range(repeats):
        _finish(device)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        _finish(device)
        taken.append((time.perf_counter() - start) / calls)
    return median(taken)


def _finish(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
