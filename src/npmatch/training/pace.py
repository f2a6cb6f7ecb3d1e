"""How long a step takes, and so how many of them fit into some minutes."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from npmatch.distributed.ranks import all_reduce_max, on_rank_zero
from npmatch.training.config import TrainingConfig
from npmatch.training.loop import Trainer
from npmatch.training.update import filled_decay

WARM_UP = 5  # steps that are not timed: libraries choose their kernels, a graph is captured
MOST_STEPS = 200  # timed
AT_LEAST = WARM_UP + MOST_STEPS  # iterations of a trainer that is measured
ENOUGH_SECONDS = 10.0  # of timed steps; a few slow ones tell as much as many fast ones
LOOKS = 10  # evaluations and checkpoints along a run of some minutes


def steps_within(minutes: float, trainer: Trainer, device: torch.device) -> int:
    """The number of steps that take `minutes`, at least one; the trainer is left at its first step, as it was."""
    before = {tensor.data_ptr(): tensor.clone() for tensor in trainer.state()}
    trainer.algorithm.train()
    started, steps = 0.0, 0
    for raw in trainer.stream.batches(0, AT_LEAST):
        trainer.take_step(raw)
        if trainer.step == WARM_UP:
            started = _now(device)
        elif trainer.step > WARM_UP:
            steps += 1
            if all_reduce_max(int(time.monotonic() - started > ENOUGH_SECONDS)):  # ranks end together
                break
    seconds = (_now(device) - started) / steps
    for tensor in trainer.state():  # what the steps have made themselves, such as sums of the log, begins at zero
        tensor.copy_(before.get(tensor.data_ptr(), torch.zeros_like(tensor)))
    trainer.step = 0
    return max(1, round(60 * minutes / seconds))


def fill_minutes(trainer: Trainer, minutes: float, device: torch.device) -> TrainingConfig:
    """Gives a trainer at its first step the iterations that fit into `minutes`; returns its configuration."""
    measured = steps_within(minutes, trainer, device)
    iterations, t = on_rank_zero(lambda: measured), trainer.config
    # An interval longer than the run would leave it without a curve, and a stopped one with nothing to go on from.
    eval_every, checkpoint_every = (
        interval if interval <= iterations else max(1, iterations // LOOKS)
        for interval in (t.eval_every, t.checkpoint_every)
    )
    ema = filled_decay(t.ema, iterations)
    trainer.config = replace(
        t, iterations=iterations, eval_every=eval_every, checkpoint_every=checkpoint_every, ema=ema
    )
    if ema != trainer.update.ema.decay:
        trainer.update.ema.decay = ema
        trainer.captured = None  # the graph was recorded with the other decay
    return trainer.config


def _now(device: torch.device) -> float:
    """The time once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()
