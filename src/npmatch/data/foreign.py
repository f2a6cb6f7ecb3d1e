"""Images of no known class among the unlabelled ones, as there are in any set that nobody has looked through.

They come from another source and get the label −2, which the log's diagnostics read and nothing that trains does.
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
    """The data set a configuration names, with foreign images among its own where it asks for them."""
    share, name = config.foreign_share, config.foreign
    if not 0 <= share < 1:
        raise NPMatchError(f"data.foreign_share={share}: give a share of at least 0 and below 1")
    if share and name is None:
        raise NPMatchError(f"data.foreign_share={share}: name their source too, for example data.foreign=svhn")
    dataset = load_dataset(config.source, _path(config.root), config.image_size, config.check, listing)
    if not share or name is None:
        return dataset
    in_files = name in SOURCES and SOURCES[name].size is not None  # and so of any size
    side = dataset.train.images.shape[-1] if in_files else None
    try:
        foreign = load_dataset(name, _path(config.foreign_root), side)
    except NPMatchError as error:  # which may speak of --data
        raise NPMatchError(f"data.foreign={name}, whose folder is data.foreign_root: {error}") from error
    return mix_foreign(dataset, foreign, share)


def mix_foreign(dataset: Dataset, foreign: Dataset, share: float) -> Dataset:
    """`dataset` with training images of `foreign` behind its own, which are then `share` of them all."""
    _check(dataset, foreign)
    own, other = dataset.train, foreign.train
    count = round(share / (1 - share) * len(own))
    if count > len(other):
        most = math.floor(1000 * len(other) / (len(own) + len(other))) / 1000
        raise NPMatchError(
            f"data.foreign_share={share}: takes {count} images of {foreign.name}, which has {len(other)}; "
            f"give {most} or less"
        )
    # The same draw for every seed, so that one run's split fits all the others; a larger share contains a smaller one.
    order = torch.randperm(len(other), generator=torch.Generator().manual_seed(mix(0, "foreign")))
    chosen = order[:count]
    labels = torch.cat([own.labels, torch.full((count,), FOREIGN)])
    names = [f"{foreign.name}/{other.names[i] if other.names else i}" for i in chosen.tolist()]
    train = ImageSet(_join(own.images, other.images, chosen), labels, own.names + names if own.names else [])
    return replace(dataset, train=train)


def _join(own: ImageStore, other: ImageStore, chosen: Tensor) -> ImageStore:
    """All of `own`, then `chosen` of `other`; in memory where both are."""
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
    if torch.equal(own.take(torch.tensor([0])), other.take(torch.tensor([0]))):  # one folder was meant for both
        raise NPMatchError(
            f"data.foreign: the images of {foreign.name} are those of {dataset.name}; name their own folder as "
            "data.foreign_root"
        )


def _path(root: str | None) -> Path | None:
    return None if root is None else Path(root)
