"""The split of the training images into labelled, unlabelled and validation images: drawn by a seed, then saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from npmatch.data.copies import Groups, picture_of_each
from npmatch.data.fingerprint import dataset_fingerprint
from npmatch.data.images import select_images
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.types import Dataset, ImageSet

PARTS = ("labeled", "unlabeled", "validation")


def _empty() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """Positions in `dataset.train` of labelled, unlabelled and validation images, each sorted, int64."""

    labeled: Tensor
    unlabeled: Tensor  # all other images; includes the labelled ones if `include_labeled`
    validation: Tensor
    seed: int
    fingerprint: str  # `dataset_fingerprint` of the data set that the split was made for
    include_labeled: bool = True
    left_out: Tensor = field(default_factory=_empty)  # in no part: broken files, copies of test images
    left_out_test: Tensor = field(default_factory=_empty)  # the same for the test set: positions in `dataset.test`

    def save(self, path: str | Path) -> None:
        """Writes the split as JSON, without the unlabelled positions, which follow from the others."""
        counts = {
            "images": _num_images(self),
            "labeled": len(self.labeled),
            "unlabeled": len(self.unlabeled),
            "validation": len(self.validation),
        }
        content = {
            "seed": self.seed,
            "fingerprint": self.fingerprint,
            "include_labeled": self.include_labeled,
            "counts": counts,
            "labeled": self.labeled.tolist(),
            "validation": self.validation.tolist(),
            "left_out": self.left_out.tolist(),
            "left_out_test": self.left_out_test.tolist(),
        }
        write_atomically(Path(path), (json.dumps(content) + "\n").encode())

    @staticmethod
    def load(path: str | Path, dataset: Dataset | None = None) -> Split:
        """Reads a saved split; with `dataset`, a split that was made for other data is an error."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            content = {"left_out": [], "left_out_test": [], **content}  # missing in older files
            labeled, validation, left_out, left_out_test = (
                _positions(content, part) for part in ("labeled", "validation", "left_out", "left_out_test")
            )
            include_labeled = bool(content["include_labeled"])
            unlabeled = _unlabeled(content["counts"]["images"], labeled, validation, left_out, include_labeled)
            seed, fingerprint = content["seed"], content["fingerprint"]
            split = Split(labeled, unlabeled, validation, seed, fingerprint, include_labeled, left_out, left_out_test)
        except FileNotFoundError as error:
            raise NPMatchError(f"{path}: no such file") from error
        except IsADirectoryError as error:
            raise NPMatchError(f"{path}: a folder; name a split's file, for example RUN/split.json") from error
        except OSError as error:
            raise NPMatchError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
            raise NPMatchError(f"{path}: not a split written by npmatch ({type(error).__name__}: {error})") from error
        if dataset is not None and not _fits(split, dataset):
            before, now = _num_images(split), len(dataset.train)
            counts = f"{before} training images, here are {now}"
            difference = counts if before != now else "labels, classes or file names differ"
            raise NPMatchError(
                f"{path}: this split was made for other data: {difference}; use the data it was made for, or start "
                "a new run, which draws a new split"
            )
        return split


def _positions(content: Mapping[str, Any], part: str) -> Tensor:
    """A part of a saved split; a ValueError if it is not a list of distinct positions."""
    positions = content[part]
    if any(type(one) is not int or one < 0 for one in positions) or len(set(positions)) < len(positions):
        raise ValueError(f"{part} must be positions of images, each once")
    return torch.tensor(positions, dtype=torch.int64)


def _fits(split: Split, dataset: Dataset) -> bool:
    """Whether a split was made for `dataset` and all its positions are valid in it."""
    num_test = 0 if dataset.test is None else len(dataset.test)
    is_valid = len(split.left_out_test) == 0 or int(split.left_out_test.max()) < num_test
    return split.fingerprint == dataset_fingerprint(dataset) and _num_images(split) == len(dataset.train) and is_valid


def make_split(
    dataset: Dataset,
    labels: int | None,
    seed: int,
    validation: float = 0.0,
    include_labeled: bool = True,
    left_out: Tensor | None = None,
    copies: Groups = (),
) -> Split:
    """Draws a split with `labels` labelled images, equally many of each class; None takes all images with a label.

    `validation` images are kept out of training. Below 1 it is a share of each class: of its images with a label that
    were not drawn or, if `labels` is None, of all its images with a label. From 2 on it is a number of images, spread
    over the classes in proportion. The unlabelled set has all other images, and the labelled ones if `include_labeled`.
    Images at `left_out` are in no part. Of images that are `copies` of one another, at most one is held out, and the
    others are then in no part; they are labelled after all other images.
    """
    left_out = _empty() if left_out is None else left_out
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
    to_label = [images[~is_held[images]] for images in members]
    _check_enough(dataset, to_label, wanted)
    labeled_index = _sorted([m[: None if labels is None else n] for m, n in zip(to_label, wanted, strict=True)])
    held_copies = torch.from_numpy(is_held.nonzero()[0])
    left_out = torch.unique(torch.cat([left_out, held_copies[~torch.isin(held_copies, validation_index)]]))
    unlabeled = _unlabeled(len(dataset.train), labeled_index, validation_index, left_out, include_labeled)
    fingerprint = dataset_fingerprint(dataset)
    return Split(labeled_index, unlabeled, validation_index, seed, fingerprint, include_labeled, left_out)


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


def leave_out(split: Split, left_out: Tensor, left_out_test: Tensor) -> Split:
    """`split` without the training images at `left_out` and the test images at `left_out_test`."""
    out = torch.unique(torch.cat([split.left_out, left_out]))
    out_test = torch.unique(torch.cat([split.left_out_test, left_out_test]))
    kept = {name: part[~torch.isin(part, out)] for name, part in vars(split).items() if name in PARTS}
    return replace(split, left_out=out, left_out_test=out_test, **kept)


def with_more_labels(split: Split, dataset: Dataset, positions: Tensor) -> Split:
    """`split` with the images at `positions` labelled too; `dataset` may have new images at its end."""
    if held_out := set(positions.tolist()) & set(split.validation.tolist()):
        raise NPMatchError(f"image {min(held_out)} of the training set is kept for validation and cannot be labelled")
    labeled = torch.unique(torch.cat([split.labeled, positions[~torch.isin(positions, split.left_out)]]))
    unlabeled = _unlabeled(len(dataset.train), labeled, split.validation, split.left_out, split.include_labeled)
    return replace(split, labeled=labeled, unlabeled=unlabeled, fingerprint=dataset_fingerprint(dataset))


def _members_by_class(dataset: Dataset, left_out: Tensor) -> list[npt.NDArray[np.int64]]:
    """For each class, the positions of the images with its label."""
    labels = dataset.train.labels.cpu().numpy().copy()
    labels[left_out.numpy()] = -1
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(len(dataset.class_names) + 1))
    return [order[first:last] for first, last in pairwise(bounds)]


def _labels_per_class(labels: int | None, classes: int, rng: np.random.Generator) -> list[int]:
    """Number of labelled images of each class: equal, the remainder to random classes; with None, one (the minimum)."""
    if labels is None:
        return [1] * classes
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


def _unlabeled(images: int, labeled: Tensor, validation: Tensor, left_out: Tensor, include_labeled: bool) -> Tensor:
    """Positions of the unlabelled set, given the number of training images and the other parts."""
    is_unlabeled = torch.ones(images, dtype=torch.bool)
    is_unlabeled[labeled] = include_labeled
    is_unlabeled[validation] = False
    is_unlabeled[left_out] = False
    return is_unlabeled.nonzero().flatten()


def _sorted(parts: list[npt.NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.sort(np.concatenate(parts)).astype(np.int64))


def _num_images(split: Split) -> int:
    """Number of training images, counted from the parts of a split."""
    labeled = 0 if split.include_labeled else len(split.labeled)
    return len(split.unlabeled) + len(split.validation) + len(split.left_out) + labeled


def evaluation_set(dataset: Dataset, split: Split) -> ImageSet | None:
    """The images to evaluate on: the test images, or else the validation images; None without either."""
    return test_set(dataset, split) or validation_set(dataset, split)


def test_set(dataset: Dataset, split: Split) -> ImageSet | None:
    """The test images without those left out; None if there are none."""
    if dataset.test is None or not len(dataset.test):
        return None
    if not len(split.left_out_test):
        return dataset.test
    kept = torch.ones(len(dataset.test), dtype=torch.bool)
    kept[split.left_out_test] = False
    return select_images(dataset.test, kept.nonzero().flatten())


def validation_set(dataset: Dataset, split: Split) -> ImageSet | None:
    """The labelled images that were held out of training; None if there are none."""
    return select_images(dataset.train, split.validation) if len(split.validation) else None


def trained_on(split: Split) -> Tensor:
    """Sorted positions of all images used in training, labelled or not."""
    positions: Tensor = torch.unique(torch.cat([split.labeled, split.unlabeled]))
    return positions
