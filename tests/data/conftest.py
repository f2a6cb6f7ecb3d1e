"""Small image files and data sets for the tests of `npmatch.data`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from few_photos import save_photo
from npmatch.data import ArrayImages, Dataset, FileImages, ImageSet

WriteImage = Callable[..., np.ndarray]


@pytest.fixture
def write_image() -> WriteImage:
    """A function that writes a random picture and returns its pixels, H W 3."""

    return lambda path, seed=0, width=8, height=8: save_photo(path, seed, (width, height))


@pytest.fixture
def memory_dataset() -> Dataset:
    """40 images of 3 classes and 20 unlabelled ones, in memory, all different."""
    pixels = torch.randint(0, 256, (60, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    labels = torch.cat([torch.arange(40) % 3, torch.full((20,), -1)])
    return Dataset("memory", ("a", "b", "c"), ImageSet(ArrayImages(pixels), labels))


@pytest.fixture
def file_dataset(memory_dataset: Dataset, tmp_path: Path) -> Dataset:
    """The images of `memory_dataset` as PNG files."""
    paths = [tmp_path / f"{number:03}.png" for number in range(len(memory_dataset.train))]
    for path, image in zip(paths, memory_dataset.train.images.take(torch.arange(60)), strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    images = FileImages(paths, size=8)
    train = ImageSet(images, memory_dataset.train.labels, [path.name for path in paths])
    return Dataset("files", memory_dataset.class_names, train)
