"""Runs in which some steps are made non-finite, and what these steps change."""

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
    """Multiplies every loss of these steps by `value`; yields the names of the tensors that each of them changed."""
    changed: dict[int, list[str]] = {}
    factors: dict[torch.device, torch.Tensor] = {}
    take_step, call = Trainer.take_step, Update.__call__

    def factor_on(device: torch.device) -> torch.Tensor:
        if device not in factors:  # also in the step on trial that measures the memory of a GPU, before the first one
            factors[device] = torch.ones((), device=device)
        return factors[device]

    def watching(self, raw):
        factor = factor_on(self.update.progress.device)
        before = {name: t.clone() for name, t in whole_state(self).items()}
        number = self.step
        factor.fill_(value if number in steps else 1.0)
        take_step(self, raw)
        if number in steps:
            after = whole_state(self)
            changed[number] = [name for name in before if not torch.equal(before[name], after[name])]

    def poisoning(self, loss):
        call(self, loss * factor_on(loss.device))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", watching)
        patch.setattr(Update, "__call__", poisoning)
        yield changed


def whole_state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All tensors that a step may change, except the counts of bad steps."""
    parts = (trainer.algorithm, trainer.update.ema, trainer.update, trainer.meter)
    return {f"{part.__class__.__name__}/{key}": t for part in parts for key, t in part.state_dict().items()}


def train_poisoned(folder: Path, steps: set[int], value: float = float("nan"), **changes) -> npmatch.Run:
    """A tiny run with these bad steps; fails if one of them changed a tensor."""
    with poisoned(steps, value) as changed:
        run = train_tiny(folder, **changes)
    assert changed == {step: [] for step in steps}
    return run
