"""Images of no known class, to measure how well a model's uncertainty tells them from those it was trained for.

Noise is always among them. Others come from further sources, scaled to the model's input, and in `cifar10-open` and
with `data.foreign` from the data set itself.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.defaults import scaled
from npmatch.data import ArrayImages, ImageSet, ImageStore
from npmatch.data.foreign import load_foreign
from npmatch.decide.novelty import reference_positions
from npmatch.errors import NPMatchError

MOST_FAR = 2000  # images of each set, evenly spaced in their source
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue, as Pillow converts to grey


class FarSource(NamedTuple):
    """A source of images that are not the model's: a name of `data.source`, and its folder or file."""

    name: str
    root: Path | None = None  # None: $NPMATCH_DATA, or a source that needs no files

    @staticmethod
    def parse(word: str) -> FarSource:
        """The source that is written NAME=DIR, or NAME alone."""
        name, _, root = word.partition("=")
        if not name or name == "noise":
            raise NPMatchError(f"--far {word}: write NAME=DIR, for example mnist=data/mnist; noise is always included")
        return FarSource(name, Path(root) if root else None)


@cache  # many runs are judged by the same images
def far_images(source: FarSource, shape: tuple[int, int, int]) -> ImageStore:
    """Images of a source in the shape C H W of the model's own: test images if it has some."""
    channels, side, _ = shape
    try:
        dataset = load_foreign(source.name, source.root, side)
    except NPMatchError as error:  # its message may name --data, which does not apply here
        raise NPMatchError(f"--far {source.name}, whose folder is given as {source.name}=DIR: {error}") from error
    part = dataset.test or dataset.train
    pixels = part.images.take(reference_positions(len(part), MOST_FAR))
    pixels = pixels if pixels.shape[-1] == side else scaled(pixels, side)
    return ArrayImages(with_channels(pixels, channels))


def with_channels(pixels: Tensor, channels: int) -> Tensor:
    """Images N C H W in grey or in colour, as the model takes them."""
    if pixels.shape[1] == channels:
        return pixels
    if channels == 1:
        weights = torch.tensor(LUMINANCE).view(3, 1, 1)
        return (pixels.float() * weights).sum(1, keepdim=True).round().clamp(0, 255).byte()
    return pixels.expand(-1, channels, -1, -1)


def noise(shape: tuple[int, int, int], count: int) -> ImageStore:
    """Images of independent pixels, each value equally likely; the same ones in every run."""
    draws = torch.Generator().manual_seed(0)
    return ArrayImages(torch.randint(256, (min(count, MOST_FAR), *shape), generator=draws, dtype=torch.uint8))


def far_sets(sources: list[FarSource], judged: ImageSet, near: ImageSet | None) -> dict[str, ImageStore]:
    """Name → images of no known class; `near` ones are those of the data set itself."""
    shape = judged.images.shape
    sets = {"noise": noise(shape, len(judged)), **{source.name: far_images(source, shape) for source in sources}}
    return sets if near is None else {**sets, "unknown classes": near.images}
