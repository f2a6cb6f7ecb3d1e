"""Training on synthetic data: random images in the shape of a real data set, and a trainer on them as in any run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from npmatch.algorithms import find_algorithm
from npmatch.config.resolve import resolve_config
from npmatch.config.tree import Config
from npmatch.data import ArrayImages, RawBatch, make_split
from npmatch.errors import NoSuchChoiceError
from npmatch.runs.build import build
from npmatch.training import Display, Trainer
from npmatch.types import Dataset, ImageSet, ImageStore

# For each data source: classes, channels, side in pixels, and the number of random images that stand for the set.
SHAPES = {
    "digits": (10, 1, 8, 1437),
    "mnist": (10, 1, 28, 60_000),
    "fashion-mnist": (10, 1, 28, 60_000),
    "cifar10": (10, 3, 32, 50_000),
    "cifar100": (100, 3, 32, 50_000),
    "svhn": (10, 3, 32, 50_000),
    "stl10": (10, 3, 96, 10_000),
    "imagenet": (1000, 3, 256, 2_000),
}


def variant_config(recipe: str, algorithm: str, words: Mapping[str, Any], settings: Mapping[str, Any]) -> Config:
    """A recipe's configuration for one variant: the user's words, and over them the settings of the variant.

    Settings of an algorithm that this one does not have are left out: they were meant for another variant.
    """
    known = {f"algorithm.{field.name}" for field in dataclasses.fields(find_algorithm(algorithm).Config)}
    mine = {key: value for key, value in words.items() if not key.startswith("algorithm.") or key in known}
    return resolve_config(recipe, algorithm=algorithm, overrides={**mine, **settings})


def synthetic_dataset(config: Config) -> Dataset:
    """Random images and labels in the shape of the configured source."""
    if config.data.source not in SHAPES:
        raise NoSuchChoiceError("source of synthetic images", config.data.source, list(SHAPES))
    classes, channels, side, count = SHAPES[config.data.source]
    generator = torch.Generator().manual_seed(0)
    shape = (count, channels, side, side)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    return labelled_dataset(ArrayImages(pixels), classes)


def labelled_dataset(images: ImageStore, classes: int) -> Dataset:
    """The images as a data set, with the labels 0, 1, … repeated in order."""
    channels = images.shape[0]
    labels = torch.arange(len(images)) % classes
    names = tuple(f"class {number}" for number in range(classes))
    return Dataset("synthetic", names, ImageSet(images, labels), None, (0.5,) * channels, (0.25,) * channels)


@dataclass
class TrainStep:
    """A trainer whose every call takes the next training step, exactly as the training loop does."""

    trainer: Trainer
    batches: Iterator[RawBatch]
    tf32: bool = True  # in convolutions of a step that is not captured
    images: int = 0  # of the last step on all ranks, before augmentation; a small set may have fewer than μ asks for

    def __call__(self) -> None:
        """Takes a step on the next batch; where nothing is captured, with the default settings of torch."""
        with nullcontext() if self.trainer.captures else torch_defaults(self.tf32):
            raw = next(self.batches)
            self.trainer.take_step(raw)
        self.images = raw.size


@contextmanager
def torch_defaults(tf32: bool = True) -> Iterator[None]:
    """The default settings of torch: fast steps change those of the whole process, from which plain ones must not gain.

    By default PyTorch rounds the inputs of float32 convolutions to TF32; `tf32=False` turns that off.
    """
    matmul = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=tf32):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)


def make_train_step(config: Config, dataset: Dataset, device: torch.device, tf32: bool = True) -> TrainStep:
    """Training on `dataset` before its first step; no run folder is written."""
    # Fewer images than the real set has: half of each class may be labelled at most.
    classes = len(dataset.class_names)
    most = len(dataset.train.images) // (2 * classes) * classes
    split = make_split(dataset, min(config.data.labels or most, most), config.seed)
    trainer, _ = build(config, dataset, split, device, Display("", 0, quiet=True))
    trainer.algorithm.train()
    return TrainStep(trainer, trainer.stream.batches(0, config.training.iterations), tf32)
