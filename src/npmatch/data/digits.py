"""scikit-learn's handwritten digits: 8×8 grey images that need no download, for trying things out."""

from __future__ import annotations

import numpy as np
import torch

from npmatch.data.images import ArrayImages
from npmatch.types import Dataset, ImageSet


def read_digits() -> Dataset:
    """1,437 training and 360 test images of ten digits, always the same ones."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    pixels = np.minimum(digits.images * 16, 255).astype(np.uint8)[:, None]  # 0…16 becomes 0, 16, …, 240, 255
    train, test = train_test_split(np.arange(len(pixels)), test_size=360, stratify=digits.target, random_state=0)

    def part(index: np.ndarray) -> ImageSet:
        return ImageSet(ArrayImages(torch.from_numpy(pixels[index])), torch.from_numpy(digits.target[index]))

    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", names, part(train), part(test), mean=(0.3062,), std=(0.3769,))
