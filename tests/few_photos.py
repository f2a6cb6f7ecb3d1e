"""Made-up photos: one file, or a folder to train on; and settings that train on such a folder in a moment.

With `save_weights` training starts from pretrained weights, made up as well.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from npmatch.backbones import SmallCNN
from tiny import TINY

WORDS = {**TINY, "data.image_size": 8, "augment.padding": 1, "training.iterations": 6, "training.checkpoint_every": 3}


def save_photo(path: Path, seed: int = 0, size=(16, 16), mode="RGB", light=(0, 256), **options) -> np.ndarray:
    """Saves noise between two levels of light and returns its pixels, H W 3; `size` is width and height."""
    pixels = np.random.default_rng(seed).integers(*light, (size[1], size[0], 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path, **options)
    return pixels


def save_photos(
    root: Path, size=(16, 16), classes: Sequence[str] = "ab", labels=4, unlabeled=4, test=1, mode="RGB"
) -> Path:
    """Saves labeled/CLASS/0.png …, unlabeled/0.png … and test/CLASS/0.png …, no two alike.

    The classes differ in their light, so that they can be learnt. A file of the same name is the same in every folder.
    """
    counts = {"unlabeled": unlabeled}
    counts |= {f"{part}/{name}": n for part, n in (("labeled", labels), ("test", test)) for name in classes}
    for folder, count in counts.items():
        for i in range(count):
            path = Path(folder) / f"{i}.png"
            shade = i % len(classes) if folder == "unlabeled" else list(classes).index(path.parent.name)
            low = 160 * shade // max(1, len(classes) - 1)
            save_photo(root / path, zlib.crc32(str(path).encode()), size, mode, (low, low + 96))
    return root


def save_weights(path: Path) -> dict[str, object]:
    """Saves the weights of a tiny network for photos in colour, and returns the settings that start from them."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        torch.save(SmallCNN(4, 1, 3).state_dict(), path)
    network = {"backbone.name": "cnn", "backbone.width": 4, "backbone.stem_stride": 1, "backbone.input_size": 8}
    return {**network, "backbone.frozen": False, "backbone.weights": str(path)}
