"""Whether two runs are equal, to the bit."""

from pathlib import Path

import torch

from npmatch.runs.folder import RunFolder
from npmatch.training import load_tensors

CLOCKS = ("seconds", "images_per_second")


def log(folder: Path) -> list[dict]:
    """A run's log without times and speeds."""
    return [{k: v for k, v in record.items() if k not in CLOCKS} for record in RunFolder(folder).records()]


def last_checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(sorted((folder / "checkpoints").glob("step-*"))[-1])[0]


def same_run(one: Path, other: Path) -> bool:
    """Whether logs and final states are equal."""
    first, second = last_checkpoint(one), last_checkpoint(other)
    same_state = first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    return same_state and log(one) == log(other)
