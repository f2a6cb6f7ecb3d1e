"""Clocks: how long a function takes on the CPU or on a GPU, alone or in turns with others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

Run = Callable[[], object]


def seconds_per_call(run: Run, device: str, repeats: int = 5, calls: int = 1, warm_up: int = 2) -> float:
    """Median over `repeats` of the mean over `calls`; a GPU has finished its work whenever the clock is read."""
    for _ in range(warm_up):
        run()
    return median(_burst(run, device, calls) for _ in range(repeats))


def interleaved(runs: Mapping[str, Run], device: str, rounds: int = 7, burst: float = 0.3) -> dict[str, float]:
    """Median seconds per call of several functions that take turns, so that other load slows all of them alike.

    A turn is as many calls as fill about `burst` seconds.
    """
    first = {name: seconds_per_call(run, device, repeats=1) for name, run in runs.items()}
    calls = {name: min(max(1, round(burst / max(seconds, 1e-6))), 1000) for name, seconds in first.items()}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            taken[name].append(_burst(run, device, calls[name]))
    return {name: median(values) for name, values in taken.items()}


def captured(run: Run) -> Run:
    """The same work as one CUDA graph, which is replayed."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # libraries choose their kernels and allocate their workspaces
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(_keep: Run = run) -> None:  # what `run` holds is the graph's storage
        graph.replay()

    return replay


def tell(text: str) -> None:
    """Writes a line of progress to standard error at once, because a time limit may end the benchmark early."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _burst(run: Run, device: str, calls: int) -> float:
    """Mean seconds per call over `calls` calls in a row."""
    finish(device)
    start = time.perf_counter()
    for _ in range(calls):
        run()
    finish(device)
    return (time.perf_counter() - start) / calls


def finish(device: str) -> None:
    """Waits until a GPU has done all work that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
