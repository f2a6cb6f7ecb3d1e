"""The program that `python -m benchmarks.scaling` times, in one process or on all ranks of a torchrun.

    python -m benchmarks.scaling_worker RESULT STEPS DEVICE RECIPE [KEY=VALUE]...

The first rank writes what it measured to the file RESULT, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.synthetic import make_train_step, synthetic_dataset
from benchmarks.timing import finish
from npmatch.config.resolve import resolve_config
from npmatch.distributed.collective import traffic
from npmatch.distributed.devices import choose_device
from npmatch.distributed.ranks import all_gather_object, is_rank_zero, process_group, world_size
from npmatch.errors import NPMatchError, ReportedElsewhereError

WARM_UP = 3  # steps


def measure_here(result: Path, steps: int, device: torch.device, words: list[str]) -> None:
    """Times `steps` training steps in this process; the first rank writes the row of the table to `result`."""
    torch.set_num_threads(1)
    with process_group(device):
        config = resolve_config(words[0], overrides=words[1:])
        config = replace(config, training=replace(config.training, iterations=2**20))  # so that the stream does not end
        train_step = make_train_step(config, synthetic_dataset(config), device)
        for _ in range(WARM_UP):
            train_step()
        finish(str(device))
        traffic.clear()
        start = time.perf_counter()
        for _ in range(steps):
            train_step()
        finish(str(device))
        seconds = (time.perf_counter() - start) / steps
        shares = all_gather_object(traffic.seconds / steps / seconds)
        row = {
            "ranks": world_size(),
            "milliseconds": 1000 * seconds,
            "images": train_step.images,
            "images_per_second": train_step.images / seconds,
            "communication_share": sum(shares) / len(shares),
            "collectives": traffic.collectives / steps,
            "megabytes": traffic.sent / steps / 1e6,
        }
        if is_rank_zero():
            result.write_text(json.dumps(row))


if __name__ == "__main__":
    try:
        measure_here(Path(sys.argv[1]), int(sys.argv[2]), choose_device(sys.argv[3]), sys.argv[4:])
    except NPMatchError as error:
        sys.exit("" if isinstance(error, ReportedElsewhereError) else f"npmatch: {error}")
