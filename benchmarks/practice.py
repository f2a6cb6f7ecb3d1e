"""Training without files: random images in the shape of a real set, and a trainer on them as in any run."""

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
from npmatch.runs.build import assemble
from npmatch.training import Display, Trainer
from npmatch.types import Dataset, ImageSet, ImageStore

# Of each source whose recipes can be practised: classes, channels, side, and how many images stand for the set.
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


def practice_config(recipe: str, algorithm: str, words: Mapping[str, Any], settings: Mapping[str, Any]) -> Config:
    """A recipe's configuration under a user's words and a variant's settings.

    Of the words about an algorithm, those that this one does not know are left out: they were meant for another.
    """
    known = {f"algorithm.{field.name}" for field in dataclasses.fields(find_algorithm(algorithm).Config)}
    mine = {key: value for key, value in words.items() if not key.startswith("algorithm.") or key in known}
    return resolve_config(recipe, algorithm=algorithm, overrides={**mine, **settings})


def practice_dataset(config: Config) -> Dataset:
    """Random images and labels in the shape of the configured source."""
    if config.data.source not in SHAPES:
        raise NoSuchChoiceError("source to practise on", config.data.source, list(SHAPES))
    classes, channels, side, count = SHAPES[config.data.source]
    generator = torch.Generator().manual_seed(0)
    shape = (count, channels, side, side)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    return labelled(ArrayImages(pixels), classes)


def labelled(images: ImageStore, classes: int) -> Dataset:
    """The images with labels that go round the classes."""
    channels = images.shape[0]
    labels = torch.arange(len(images)) % classes
    names = tuple(f"class {number}" for number in range(classes))
    return Dataset("practice", names, ImageSet(images, labels), None, (0.5,) * channels, (0.25,) * channels)


@dataclass
class Practice:
    """A trainer at its first step, called for one step after another exactly as the loop does."""

    trainer: Trainer
    batches: Iterator[RawBatch]
    tf32: bool = True  # in convolutions, where nothing is captured
    images: int = 0  # of the last step on all ranks, before augmentation; μ says what is wished, a small set has fewer

    def __call__(self) -> None:
        """The next batch, and a step on it; where nothing is captured, with torch's settings as they are by default."""
        with nullcontext() if self.trainer.captures else torch_defaults(self.tf32):
            raw = next(self.batches)
            self.trainer.take_step(raw)
        self.images = raw.size


@contextmanager
def torch_defaults(tf32: bool = True) -> Iterator[None]:
    """A step made fast changes settings of the whole process; one that stands for plain PyTorch must not gain by it.

    By default PyTorch rounds the inputs of float32 convolutions to TF32; `tf32` false takes that away.
    """
    matmul = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=tf32):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)


def practise(config: Config, dataset: Dataset, device: torch.device, tf32: bool = True) -> Practice:
    """A run without files on `dataset`."""
    # Fewer images than the real set has: half of each class may be labelled at most.
    classes = len(dataset.class_names)
    most = len(dataset.train.images) // (2 * classes) * classes
    split = make_split(dataset, min(config.data.labels or most, most), config.seed)
    trainer, _ = assemble(config, dataset, split, device, Display("", 0, quiet=True))
    trainer.algorithm.train()
    return Practice(trainer, trainer.stream.batches(0, config.training.iterations), tf32)
