"""Foreign images: images that belong to no known class, mixed into the unlabelled set.

An unlabelled set that nobody has sorted contains such images. Here they come from another source and get the label −2,
which only the diagnostics in the log read; training never does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from npmatch.data.config import DataConfig
from npmatch.data.images import ArrayImages, JoinedImages, SelectedImages
from npmatch.data.sources.listing import Listing
from npmatch.data.sources.registry import SOURCES, load_dataset
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.types import FOREIGN, Dataset, ImageSet, ImageStore


def load_with_foreign(config: DataConfig, listing: Listing | None = None) -> Dataset:
    """Loads the data set that a configuration names, and mixes in the foreign images it asks for."""
    share, name = config.foreign_share, config.foreign
    if not 0 <= share < 1:
        raise NPMatchError(f"data.foreign_share={share}: give a share of at least 0 and below 1")
    if share and name is None:
        raise NPMatchError(f"data.foreign_share={share}: name their source as well, for example data.foreign=svhn")
    dataset = load_dataset(config.source, _path(config.root), config.image_size, config.check, listing)
    if not share or name is None:
        return dataset
    try:
        foreign = load_foreign(name, _path(config.foreign_root), dataset.train.images.shape[-1])
    except NPMatchError as error:  # its message may name --data, which does not apply here
        raise NPMatchError(f"data.foreign={name}, whose folder is data.foreign_root: {error}") from error
    return mix_foreign(dataset, foreign, share)


def load_foreign(name: str, root: Path | None, side: int) -> Dataset:
    """Loads a source of foreign images, at `side` pixels if its images are in files, which can have any size."""
    is_scalable = name in SOURCES and SOURCES[name].size is not None
    return load_dataset(name, root, side if is_scalable else None)


def mix_foreign(dataset: Dataset, foreign: Dataset, share: float) -> Dataset:
    """Appends training images of `foreign` to those of `dataset`, so that they are `share` of all training images."""
    _check(dataset, foreign)
    own, other = dataset.train, foreign.train
    count = round(share / (1 - share) * len(own))
    if count > len(other):
        most = math.floor(1000 * len(other) / (len(own) + len(other))) / 1000
        raise NPMatchError(
            f"data.foreign_share={share}: takes {count} images of {foreign.name}, which has {len(other)}; "
            f"give {most} or less"
        )
    # The same images for every seed, so that the split of one run fits all others; a larger share contains a smaller.
    order = torch.randperm(len(other), generator=torch.Generator().manual_seed(mix(0, "foreign")))
    chosen = order[:count]
    labels = torch.cat([own.labels, torch.full((count,), FOREIGN)])
    names = [f"{foreign.name}/{other.names[i] if other.names else i}" for i in chosen.tolist()]
    train = ImageSet(_join(own.images, other.images, chosen), labels, own.names + names if own.names else [])
    return replace(dataset, train=train)


def _join(own: ImageStore, other: ImageStore, chosen: Tensor) -> ImageStore:
    """All images of `own`, followed by the images of `other` at `chosen`; in memory if both stores are."""
    if isinstance(own, ArrayImages) and isinstance(other, ArrayImages):
        return ArrayImages(torch.cat([own.pixels, other.take(chosen)]))
    return JoinedImages(own, SelectedImages(other, chosen))


def _check(dataset: Dataset, foreign: Dataset) -> None:
    own, other = dataset.train.images, foreign.train.images
    if own.shape != other.shape:
        shapes = [f"{'×'.join(map(str, store.shape))} (C H W)" for store in (other, own)]
        raise NPMatchError(
            f"data.foreign: the images of {foreign.name} are {shapes[0]}, those of {dataset.name} {shapes[1]}; "
            "choose a source of the same shape"
        )
    if torch.equal(own.take(torch.tensor([0])), other.take(torch.tensor([0]))):  # the same folder was used for both
        raise NPMatchError(
            f"data.foreign: the images of {foreign.name} are those of {dataset.name}; name the folder of the foreign "
            "images as data.foreign_root"
        )


def _path(root: str | None) -> Path | None:
    return None if root is None else Path(root)
