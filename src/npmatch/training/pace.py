"""How long a step takes here, and a trainer with the number of steps that fits into a time."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

import torch

from npmatch.data.streams import FetchedStream
from npmatch.distributed.ranks import all_reduce_max
from npmatch.training.config import TrainingConfig
from npmatch.training.loop import Trainer
from npmatch.training.update import limit_ema_decay

WARM_UP = 3  # steps at most that are not timed: libraries choose their kernels, a CUDA graph is captured
MAX_TIMED_STEPS = 200
ENOUGH_SECONDS = 10.0  # of timed steps: a few slow steps are as exact as many fast ones
EVALUATIONS = 10  # of a run that is shorter than its interval between evaluations
EVALUATED_SHARE = 0.05  # largest share of the training time that goes to evaluations in between
CHECKPOINT_SECONDS = 30.0  # of training between two checkpoints, at least


def seconds_per_step(trainer: Trainer, device: torch.device, enough: float = ENOUGH_SECONDS) -> float:
    """Mean time of a step, by timing up to `enough` seconds of them; then the trainer is set back to its start."""
    # Batches that are ready before they are needed would make steps look too fast.
    ahead = trainer.stream.ahead if isinstance(trainer.stream, FetchedStream) else 0
    last = ahead + WARM_UP + MAX_TIMED_STEPS
    started, steps, is_warm = time.monotonic(), 0, False
    with trainer.trial(last):
        for raw in trainer.stream.batches(0, last):
            trainer.take_step(raw)
            steps += 1
            # Waiting for a GPU after every step would keep the host from preparing the next one.
            if is_warm and device.type == "cuda" and steps % 10:
                continue
            seconds = _now(device) - started
            is_over = bool(all_reduce_max(int(seconds > enough)))  # all ranks go on or stop together
            if not is_warm and trainer.step > ahead and (is_over or trainer.step == ahead + WARM_UP):
                started, steps, is_warm = _now(device), 0, True
            elif is_warm and is_over:
                break
        return (_now(device) - started) / steps


def steps_within(minutes: float, trainer: Trainer, device: torch.device) -> int:
    """Number of steps that take `minutes`, at least one; evaluations are not counted."""
    return max(1, round(60 * minutes / seconds_per_step(trainer, device)))


def fill_seconds(
    trainer: Trainer, seconds: float, step: float, evaluation: float, given: Collection[str] = ()
) -> TrainingConfig:
    """Sets the iterations of a trainer at its start to what fits into `seconds`; returns its configuration.

    `step` and `evaluation` are the seconds that one of each takes. Evaluations and checkpoints come at intervals that
    leave nearly all of the time to training, unless the interval is among the `given` keys.
    """
    t, most = trainer.config, max(1, round(seconds / step))  # without evaluations

    def interval(key: str, usual: int, least: float) -> int:
        """Steps between two evaluations or checkpoints, which should be `least` seconds apart."""
        # With an interval longer than the run there would be no curve, and no checkpoint to resume from.
        short = usual if usual <= most else max(1, most // EVALUATIONS)
        return short if key in given else min(max(short, round(least / step)), most)

    eval_every = interval("training.eval_every", t.eval_every, evaluation / EVALUATED_SHARE)
    checkpoint_every = interval("training.checkpoint_every", t.checkpoint_every, CHECKPOINT_SECONDS)
    iterations = max(1, round((seconds - (most - 1) // eval_every * evaluation) / step))
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
