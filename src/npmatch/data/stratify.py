"""Drawing a split: labelled images, so many of each class, and validation images that are held out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from npmatch.data.copies import Groups, picture_of_each
from npmatch.data.split import Split, images_of_part, split_of
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.types import Dataset


def make_split(
    dataset: Dataset,
    labels: int | Sequence[int] | None,
    seed: int,
    validation: float = 0.0,
    include_labeled: bool = True,
    left_out: Tensor | None = None,
    copies: Groups = (),
) -> Split:
    """Draws a split with `labels` labelled images, equally many of each class; None takes all images with a label.

    A list gives the number of each class. `validation` images are kept out of training. Below 1 it is a share of each
    class: of its images with a label that were not drawn or, if `labels` is None, of all its images with a label. From
    2 on it is a number of images, spread over the classes in proportion. The unlabelled set has all other images, and
    the labelled ones if `include_labeled`. Images at `left_out` are in no part. Of images that are `copies` of one
    another, at most one is held out, and the others are then in no part; they are labelled after all other images.
    """
    left_out = torch.empty(0, dtype=torch.int64) if left_out is None else left_out
    if not 0 <= validation < 1 and (validation < 2 or validation != int(validation)):  # 1 could mean one image or all
        raise NPMatchError(
            f"validation={validation}: give a share of at least 0 and below 1, or a number of images from 2 on"
        )
    rng = np.random.default_rng(mix(seed, "split"))
    # Each class is shuffled once. Labelled images come from the front and validation images from the back, so that
    # for the same seed a larger label set contains the smaller one.
    picture = picture_of_each(len(dataset.train), copies)
    members = [_copies_last(rng.permutation(images), picture) for images in _members_by_class(dataset, left_out)]
    distinct = [images[: len(np.unique(picture[images]))] for images in members]
    wanted = _labels_per_class(labels, len(members), rng)
    _check_enough(dataset, members, wanted)
    held = _validation_per_class([len(images) for images in distinct], wanted, validation, count_all=labels is None)
    validation_index = _sorted([images[len(images) - n :] for images, n in zip(distinct, held, strict=True)])
    if validation and not len(validation_index):
        raise NPMatchError(f"validation={validation}: no image is left for it; use fewer labels or validation=0")
    is_held = np.isin(picture, picture[validation_index])
    left_out = torch.unique(torch.cat([left_out, _copies_of(validation_index, picture)]))
    to_label = [images[~is_held[images]] for images in members]
    _check_enough(dataset, to_label, wanted)
    labeled_index = _sorted([m[: None if labels is None else n] for m, n in zip(to_label, wanted, strict=True)])
    return split_of(dataset, labeled_index, validation_index, seed, include_labeled, left_out)


def keep_split(earlier: Split, dataset: Dataset, all_labels: bool, left_out: Tensor, copies: Groups = ()) -> Split:
    """The split of data that has changed since `earlier`, with every image in the part it was in.

    So no image that was trained on is held out now. Images are found by their names. With `all_labels`, new images that
    have a label are labelled. Images at `left_out` and `copies` of validation images are in no part.
    """
    if dataset.train.names and "validation" not in earlier.names:
        raise NPMatchError(
            "split.json: an older version wrote it without the names of the images, so that they cannot be found in "
            "data that has changed; restore the data, or start a new run"
        )
    labeled, validation = (images_of_part(dataset.train, earlier, part) for part in ("labeled", "validation"))
    picture = picture_of_each(len(dataset.train), copies)
    left_out = torch.unique(torch.cat([left_out, _copies_of(validation, picture)]))
    if all_labels:
        labeled = (dataset.train.labels >= 0).nonzero().flatten()
    labeled = labeled[~torch.isin(labeled, torch.cat([validation, left_out]))]
    validation = validation[~torch.isin(validation, left_out)]
    return split_of(dataset, labeled, validation, earlier.seed, earlier.include_labeled, left_out)


def _copies_of(positions: Tensor, picture: npt.NDArray[np.int64]) -> Tensor:
    """Positions of the other images that show the same pictures as those at `positions`."""
    same = torch.from_numpy(np.isin(picture, picture[positions]).nonzero()[0])
    return same[~torch.isin(same, positions)]


def _check_enough(dataset: Dataset, members: list[npt.NDArray[np.int64]], wanted: list[int]) -> None:
    """Refuses a class with fewer images to label than wanted."""
    for name, images, count in zip(dataset.class_names, members, wanted, strict=True):
        if len(images) < count:
            raise NPMatchError(f"class '{name}' has {len(images)} labelled images, but {count} are wanted")


def _copies_last(images: npt.NDArray[np.int64], picture: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The same images, with the first of each picture before its copies."""
    is_copy = np.ones(len(images), dtype=bool)
    is_copy[np.unique(picture[images], return_index=True)[1]] = False
    return np.concatenate([images[~is_copy], images[is_copy]])


def _members_by_class(dataset: Dataset, left_out: Tensor) -> list[npt.NDArray[np.int64]]:
    """For each class, the positions of the images with its label."""
    labels = dataset.train.labels.cpu().numpy().copy()
    labels[left_out.numpy()] = -1
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(len(dataset.class_names) + 1))
    return [order[first:last] for first, last in pairwise(bounds)]


def _labels_per_class(labels: int | Sequence[int] | None, classes: int, rng: np.random.Generator) -> list[int]:
    """Number of labelled images of each class: equal, the remainder to random classes; with None, one (the minimum)."""
    if labels is None:
        return [1] * classes
    if not isinstance(labels, int):
        return list(labels)
    if labels < classes:
        raise NPMatchError(f"labels={labels}: there are {classes} classes, and each needs at least one")
    with_one_more = set(rng.permutation(classes)[: labels % classes].tolist())
    return [labels // classes + (label in with_one_more) for label in range(classes)]


def _validation_per_class(sizes: list[int], wanted: list[int], validation: float, count_all: bool) -> list[int]:
    """Number of validation images of each class; at least `wanted` images of each class are left for training."""
    free = [max(0, size - need) for size, need in zip(sizes, wanted, strict=True)]
    if validation < 1:
        pools = sizes if count_all else free
        return [
            min(max(1, round(validation * pool)), left) if validation else 0
            for pool, left in zip(pools, free, strict=True)
        ]
    total = int(validation)
    if total > sum(free):
        raise NPMatchError(
            f"validation={total}: only {sum(free)} labelled images are left for it; hold out no more, or label more"
        )
    # In proportion to the classes, because held-out images must resemble the images that will be predicted: first the
    # whole parts, then one each to the largest remainders. As total ≤ sum(free), no class gives more than it has.
    exact = [total * left / sum(free) for left in free]
    held = [int(share) for share in exact]
    by_remainder = sorted(range(len(free)), key=lambda k: held[k] - exact[k])
    for k in by_remainder[: total - sum(held)]:
        held[k] += 1
    return held


def _sorted(parts: list[npt.NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.sort(np.concatenate(parts)).astype(np.int64))
