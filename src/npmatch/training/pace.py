"""How long a step takes, and so how many of them fit into some minutes."""

from __future__ import annotations

import time

import torch

from npmatch.distributed.ranks import largest
from npmatch.training.loop import Trainer

WARM_UP = 5  # steps that are not timed: libraries choose their kernels, a graph is captured
MOST_STEPS = 200  # timed
ENOUGH_SECONDS = 10.0  # of timed steps; a few slow ones tell as much as many fast ones
AT_LEAST = WARM_UP + MOST_STEPS  # iterations a trainer that is measured must be made for


def steps_within(minutes: float, trainer: Trainer, device: torch.device) -> int:
    """The number of steps that take `minutes`, at least one; those it takes to measure spoil the trainer."""
    trainer.algorithm.train()
    started, steps = 0.0, 0
    for raw in trainer.stream.batches(0, AT_LEAST):
        trainer.take_step(raw)
        if trainer.step == WARM_UP:
            started = _now(device)
        elif trainer.step > WARM_UP:
            steps += 1
            if largest(int(time.monotonic() - started > ENOUGH_SECONDS)):  # ranks end together
                break
    seconds = (_now(device) - started) / steps
    return max(1, round(60 * minutes / seconds))


def _now(device: torch.device) -> float:
    """The time once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()
