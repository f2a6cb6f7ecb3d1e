"""Training on images in memory that leaves no files."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmatch.algorithms import Algorithm, find_algorithm
from npmatch.array_data import Rows
from npmatch.assembly import assemble
from npmatch.choices import is_balanced
from npmatch.config import Config, config_of
from npmatch.continuation import take_state
from npmatch.data import ArrayImages, make_split
from npmatch.saved_model import ModelCard
from npmatch.training import Display
from npmatch.types import Dataset, ImageSet, NPMatchError


class Trained(NamedTuple):
    """What training leaves: the algorithm with its averaged weights, and what prediction needs to know beside it."""

    algorithm: Algorithm
    card: ModelCard


def train_on_arrays(
    rows: Rows,
    pixels: Tensor,  # uint8 n C S S
    labels: Tensor,  # n, −1 where unknown
    *,
    class_names: tuple[str, ...],
    algorithm: str,
    iterations: int,
    seed: int,
    device: torch.device,
    before: Algorithm | None = None,
) -> Trained:
    """A trained algorithm; with `before`, one that goes on from that one's state."""
    scaled = pixels.float().div(255)
    mean, std = scaled.mean((0, 2, 3)), scaled.std((0, 2, 3), correction=0).clamp(min=1 / 255)
    images = ImageSet(ArrayImages(pixels), labels)
    dataset = Dataset("arrays", class_names, images, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    counts = torch.bincount(labels[labels >= 0], minlength=len(class_names)).tolist()
    config = choose_config(algorithm, iterations, seed, rows, counts)
    quiet = Display("", iterations, quiet=True)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        trainer, evaluator = assemble(config, dataset, make_split(dataset, None, seed), device, quiet)
        if before is not None:
            take_state(trainer.algorithm, before.state_dict(), origin="warm_start")
            trainer.update.ema.load_state_dict(trainer.update.ema.live)
        for raw in trainer.stream.batches(0, iterations):
            trainer.take_step(raw)
    _, longest, first = trainer.update.bad_steps.read()
    if longest >= min(config.training.max_bad_steps, iterations):
        raise NPMatchError(f"{first} was not finite: these images cannot be learnt with the default settings")
    with trainer.update.ema.applied():
        trained = deepcopy(trainer.algorithm)
    trained.model.autocast = None  # prediction is in float32, as that of a saved model
    return Trained(trained.eval(), evaluator.card)


def choose_config(algorithm: str, iterations: int, seed: int, rows: Rows, counts: list[int]) -> Config:
    """Settings that suit small data in memory, with `counts` labels of each class."""
    own: dict[str, dict[str, Any]] = {
        "npmatch": {
            "algorithm.alignment": is_balanced(counts),
            # The digits recipe's limit, 1.2 nats, is for ten classes.
            "algorithm.max_entropy": 1.2 * math.log(len(counts)) / math.log(10),
        },
        "ups": {"algorithm.dropout": 0.1},  # a small network under dropout 0.3 learns little
    }
    return config_of(
        {
            "algorithm.name": algorithm,
            "seed": seed,
            "training.iterations": iterations,
            "training.batch": 32,
            "training.unlabeled_ratio": 4,
            "training.ema": min(0.99, max(0.0, 1 - 10 / iterations)),  # few steps leave no time for a long average
            "training.compile": False,  # compiling takes longer than training on small data
            **rows.settings(),
            **find_algorithm(algorithm).settings,
            **own.get(algorithm, {}),
        }
    )
