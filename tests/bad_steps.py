"""Runs in which some steps are made non-finite, and what they leave."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import npmatch
from npmatch.training import Update
from npmatch.training.loop import Trainer
from tiny import train_tiny


@contextmanager
def poisoned(steps: set[int], value: float = float("nan")):
    """Every loss of these steps is multiplied by `value`; yields what each of them changed, which should be nothing."""
    changed: dict[int, list[str]] = {}
    factors: dict[torch.device, torch.Tensor] = {}
    take_step, call = Trainer.take_step, Update.__call__

    def watching(self, raw):
        factor = factors.setdefault(self.update.progress.device, torch.ones((), device=self.update.progress.device))
        before = {name: t.clone() for name, t in whole_state(self).items()}
        number = self.step
        factor.fill_(value if number in steps else 1.0)
        take_step(self, raw)
        if number in steps:
            after = whole_state(self)
            changed[number] = [name for name in before if not torch.equal(before[name], after[name])]

    def poisoning(self, loss):
        call(self, loss * factors[loss.device])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", watching)
        patch.setattr(Update, "__call__", poisoning)
        yield changed


def whole_state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All that a step may change, the counts of bad steps apart."""
    parts = (trainer.algorithm, trainer.update.ema, trainer.update, trainer.meter)
    return {f"{part.__class__.__name__}/{key}": t for part in parts for key, t in part.state_dict().items()}


def train_poisoned(folder: Path, steps: set[int], value: float = float("nan"), **changes) -> npmatch.Run:
    """A tiny run with these steps bad; fails unless they left everything as it was."""
    with poisoned(steps, value) as changed:
        run = train_tiny(folder, **changes)
    assert changed == {step: [] for step in steps}
    return run
