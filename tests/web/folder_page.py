"""A folder of simple pictures of three kinds without any label, and a training of seconds on it."""

from pathlib import Path

import numpy as np
from PIL import Image

from npmatch.web.training import Training

KINDS = ("red", "green", "blue")
SETTINGS = (
    *(
        "training.iterations=30",
        "training.batch=8",
        "training.log_every=5",
        "training.ema=0.9",
        "training.compile=false",
    ),
    *("backbone.pretrained=false", "backbone.name=cnn", "backbone.width=4", "data.image_size=16", "augment.padding=2"),
)


def save_picture(path: Path, kind: str, seed: int) -> None:
    """A noisy picture whose colour is that of its kind, and a bright bar whose place says which one it is."""
    noise = np.random.default_rng(seed)
    pixels = noise.integers(0, 60, (36, 40, 3), dtype=np.uint8)
    pixels[..., KINDS.index(kind)] += 150
    left, top = noise.integers(0, 24), noise.integers(0, 20)
    pixels[top : top + 12, left : left + 12] = 240
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def save_folder(root: Path, each: int = 10, test: int = 0) -> Path:
    """Pictures in one folder, named by number alone, so that nothing but the picture tells its kind."""
    for i in range(3 * each):
        save_picture(root / f"{i:03}.png", KINDS[i % 3], i)
    for i in range(3 * test):
        save_picture(root / "test" / KINDS[i % 3] / f"{i}.png", KINDS[i % 3], 1000 + i)
    return root


def kind_of(name: str) -> str:
    """The kind of a picture that `save_folder` has saved."""
    return KINDS[int(name.removesuffix(".png")) % 3]


def train_in_seconds(monkeypatch) -> None:
    """Lets the page's training take the minutes as they are, but so few steps of so small a network."""
    usual = Training.command

    def command(self, minutes, run=None):
        words = usual(self, minutes, run)
        at = words.index("--minutes")
        return [*words[:at], *words[at + 2 :], *SETTINGS]

    monkeypatch.setattr(Training, "command", command)
