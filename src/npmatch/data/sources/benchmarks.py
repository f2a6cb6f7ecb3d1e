"""Published data sets that scikit-learn and torchvision read: digits, STL-10, SVHN."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npmatch.data.images import ArrayImages
from npmatch.errors import NPMatchError
from npmatch.types import Dataset, ImageSet


def read_digits() -> Dataset:
    """1,437 training and 360 test images of ten digits, 8×8, grey; the split is fixed."""
    pixels, labels, train, test = _digits()

    def part(index: np.ndarray) -> ImageSet:
        return ImageSet(ArrayImages(torch.from_numpy(pixels[index])), torch.from_numpy(labels[index]))

    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", names, part(train), part(test), mean=(0.3062,), std=(0.3769,))


@cache  # scikit-learn parses a table of text, which takes longer than a step of training
def _digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pixels and labels of all digits, and the positions of training and test images; not to be changed."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    pixels = np.minimum(digits.images * 16, 255).astype(np.uint8)[:, None]  # 0…16 → 0, 16, …, 240, 255
    train, test = train_test_split(np.arange(len(pixels)), test_size=360, stratify=digits.target, random_state=0)
    return pixels, digits.target, train, test


def read_stl10(root: Path) -> Dataset:
    """5,000 labelled and 100,000 unlabelled training images, 8,000 test images of 10 classes, 96×96."""
    wanted = "stl10_binary/ from https://cs.stanford.edu/~acoates/stl10"
    train, test = (open_torchvision("STL10", root, wanted, split=split) for split in ("train+unlabeled", "test"))
    names = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
    mean, std = (0.4409, 0.4279, 0.3868), (0.2683, 0.2610, 0.2687)
    return Dataset("stl10", names, _image_set(train), _image_set(test), mean, std)


def read_svhn(root: Path) -> Dataset:
    """73,257 training and 26,032 test images of digits in house numbers, 32×32; the label is the digit."""
    wanted = "train_32x32.mat and test_32x32.mat from http://ufldl.stanford.edu/housenumbers"
    train, test = (open_torchvision("SVHN", root, wanted, split=split) for split in ("train", "test"))
    names = tuple(str(digit) for digit in range(10))
    mean, std = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    return Dataset("svhn", names, _image_set(train), _image_set(test), mean, std)


def open_torchvision(name: str, root: Path, wanted: str, **part: Any) -> Any:
    """One part of torchvision's data set `name`, checksums verified; `root` may also be the unpacked folder itself."""
    from torchvision import datasets  # takes a second to import, and most runs do not need it

    cls = getattr(datasets, name)
    try:
        return cls(root.parent if root.name == getattr(cls, "base_folder", None) else root, **part)
    except RuntimeError as error:  # torchvision raises it for files that are missing or fail their checksum
        raise NPMatchError(f"{root}: files missing or damaged; put there {wanted}") from error


def _image_set(part: Any) -> ImageSet:
    """Converts a torchvision data set with pixels N C H W and labels N, −1 for unlabelled."""
    return ImageSet(ArrayImages(torch.from_numpy(part.data)), torch.from_numpy(part.labels).long())
