"""How long a step takes here, and how many steps fit into a given number of minutes."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from npmatch.distributed.ranks import all_reduce_max, on_rank_zero
from npmatch.training.config import TrainingConfig
from npmatch.training.loop import Trainer
from npmatch.training.update import limit_ema_decay

WARM_UP = 5  # steps that are not timed: libraries choose their kernels, a CUDA graph is captured
MAX_TIMED_STEPS = 200
MEASURED_STEPS = WARM_UP + MAX_TIMED_STEPS  # iterations that a trainer needs for the measurement
ENOUGH_SECONDS = 10.0  # of timed steps: a few slow steps are as exact as many fast ones
EVALUATIONS = 10  # of a run that is shorter than its interval between evaluations, and as many checkpoints


def steps_within(minutes: float, trainer: Trainer, device: torch.device) -> int:
    """Number of steps that take `minutes`, at least one, by timing some; then the trainer is set back to its start."""
    before = {tensor.data_ptr(): tensor.clone() for tensor in trainer.state()}
    trainer.algorithm.train()
    started, steps = 0.0, 0
    for raw in trainer.stream.batches(0, MEASURED_STEPS):
        trainer.take_step(raw)
        if trainer.step == WARM_UP:
            started = _now(device)
        elif trainer.step > WARM_UP:
            steps += 1
            if all_reduce_max(int(time.monotonic() - started > ENOUGH_SECONDS)):  # all ranks stop together
                break
    seconds = (_now(device) - started) / steps
    for tensor in trainer.state():  # tensors that the steps have created, such as sums of the log, start at zero
        tensor.copy_(before.get(tensor.data_ptr(), torch.zeros_like(tensor)))
    trainer.step = 0
    return max(1, round(60 * minutes / seconds))


def fill_minutes(trainer: Trainer, minutes: float, device: torch.device) -> TrainingConfig:
    """Sets the iterations of a trainer at its start to what fits into `minutes`; returns its configuration."""
    measured = steps_within(minutes, trainer, device)
    iterations, t = on_rank_zero(lambda: measured), trainer.config
    # With an interval longer than the run there would be no curve, and no checkpoint to resume from.
    eval_every, checkpoint_every = (
        interval if interval <= iterations else max(1, iterations // EVALUATIONS)
        for interval in (t.eval_every, t.checkpoint_every)
    )
    ema = limit_ema_decay(t.ema, iterations)
    trainer.config = replace(
        t, iterations=iterations, eval_every=eval_every, checkpoint_every=checkpoint_every, ema=ema
    )
    if ema != trainer.update.ema.decay:
        trainer.update.ema.decay = ema
        trainer.captured = None  # the graph was captured with the previous decay
    return trainer.config


def _now(device: torch.device) -> float:
    """Seconds of a clock, read once the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()
