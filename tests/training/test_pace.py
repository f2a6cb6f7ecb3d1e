"""Steps that fit into a time: a step is timed without a trace, and evaluations and checkpoints leave time for steps."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from npmatch.training import TrainingConfig, pace

CPU = torch.device("cpu")


def trainer_with(**settings):
    config = TrainingConfig(**{"ema": 0.999, "eval_every": 500, "checkpoint_every": 500, **settings})
    update = SimpleNamespace(ema=SimpleNamespace(decay=config.ema))
    return SimpleNamespace(config=config, update=update, captured="a graph")


@pytest.mark.parametrize(
    ("seconds", "step", "evaluation"),
    [(120, 0.01, 0.5), (120, 0.01, 0.0), (30, 0.75, 1.7), (600, 0.75, 1.7), (1, 5, 2)],
)
def test_steps_and_evaluations_take_the_time_there_is(seconds, step, evaluation):
    t = pace.fill_seconds(trainer_with(), seconds, step, evaluation)
    evaluations = (t.iterations - 1) // t.eval_every
    taken = t.iterations * step + evaluations * evaluation
    assert taken == pytest.approx(seconds, abs=max(step, evaluation)) or t.iterations == 1
    assert evaluations * evaluation <= pace.EVALUATED_SHARE * seconds * 1.01
    assert t.ema**t.iterations < 0.01


def test_a_given_interval_is_kept_if_the_run_is_long_enough():
    given = {"training.eval_every", "training.checkpoint_every"}
    t = pace.fill_seconds(trainer_with(eval_every=10, checkpoint_every=20), 120, 1, 4, given)
    assert (t.eval_every, t.checkpoint_every) == (10, 20)
    assert t.iterations == 120 - 11 * 4
    t = pace.fill_seconds(trainer_with(eval_every=1000, checkpoint_every=2000), 120, 1, 4, given)
    assert (t.eval_every, t.checkpoint_every) == (12, 12)


def test_checkpoints_are_half_a_minute_apart():
    t = pace.fill_seconds(trainer_with(), 100, 0.01, 0)
    assert t.checkpoint_every * 0.01 == 30


def test_a_new_decay_is_captured_anew():
    short, long = trainer_with(), trainer_with()
    assert pace.fill_seconds(short, 10, 0.01, 0).ema < 0.999
    assert short.captured is None
    assert short.update.ema.decay == short.config.ema
    assert pace.fill_seconds(long, 1000, 0.01, 0).ema == 0.999
    assert long.captured == "a graph"


def test_batches_that_were_ready_before_do_not_count(monkeypatch):
    """Twelve batches wait in a queue at the start; from then on each has to be decoded, which takes a second."""
    now = {"now": 0.0}

    class Queue:
        ahead = 12

        def batches(self, start, stop):
            for step in range(start, stop):
                now["now"] += 1.0 if step >= self.ahead else 0.0
                yield step

    trainer = SimpleNamespace(step=0, stream=Queue(), trial=lambda steps: nullcontext())

    def take_step(raw):
        trainer.step += 1
        now["now"] += 0.125

    trainer.take_step = take_step
    monkeypatch.setattr(pace, "FetchedStream", Queue)
    monkeypatch.setattr(pace.time, "monotonic", lambda: now["now"])
    assert pace.seconds_per_step(trainer, CPU) == pytest.approx(1.125)
