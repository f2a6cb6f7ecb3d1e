"""A folder of a few made-up photos of two classes, and settings that train on it in a moment."""

from pathlib import Path

import numpy as np
from PIL import Image

from tiny import TINY

WORDS = {**TINY, "data.image_size": 8, "augment.padding": 1, "training.iterations": 6, "training.checkpoint_every": 3}


def save_photos(folder: Path) -> Path:
    """Eight labelled ones, four unlabelled and two for the test."""
    for seed in range(14):
        part = f"labeled/{'ab'[seed % 2]}" if seed < 8 else "unlabeled" if seed < 12 else f"test/{'ab'[seed % 2]}"
        path = folder / part / f"{seed}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return folder
