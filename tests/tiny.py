"""A run small enough to train in a test."""

from pathlib import Path

import pytest

import npmatch
from npmatch.errors import InterruptedRunError
from npmatch.training.loop import Trainer

TINY = {
    "training.iterations": 24,
    "training.batch": 8,
    "training.unlabeled_ratio": 2,
    "training.log_every": 5,
    "training.eval_every": 10,
    "training.checkpoint_every": 7,
    "backbone.width": 4,
    "algorithm.samples": 3,
    "algorithm.bank": 512,
    # After so few steps predictions are uncertain: these thresholds trust some images and not others.
    "algorithm.confidence": 0.12,
    "algorithm.max_entropy": 2.3,
}


def train_tiny(folder: Path, **changes) -> npmatch.Run:
    keywords = {
        key: changes.pop(key) for key in ("seed", "resume", "allow_change", "algorithm", "device") if key in changes
    }
    settings = {**TINY, **{key.replace("__", "."): value for key, value in changes.items()}}
    if keywords.get("algorithm", "npmatch") != "npmatch":
        settings = {key: value for key, value in settings.items() if not key.startswith("algorithm.")}
    return npmatch.fit("digits-40", out=folder, quiet=True, overrides=settings, **{"device": "cpu", **keywords})


def stop_tiny(folder: Path, step: int, fit=None, **changes) -> None:
    """A run (or what `fit` trains) that ends after `step` steps without saving, as a crash would end it."""
    take_step = Trainer.take_step

    def stopping(self, raw):
        take_step(self, raw)
        if self.step == step:
            raise InterruptedRunError(self.step, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", stopping)
        with pytest.raises(InterruptedRunError):
            (fit or (lambda: train_tiny(folder, **changes)))()
