"""Which training images are labelled, unlabelled, or kept for validation: chosen by a seed, then saved."""

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

from npmatch.data.fingerprint import dataset_fingerprint
from npmatch.data.images import select_images
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.types import Dataset, ImageSet

PARTS = ("labeled", "unlabeled", "validation")


def _none() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """Indices into `dataset.train`, each sorted, int64."""

    labeled: Tensor
    unlabeled: Tensor  # follows from the others: all images less validation, those left out, perhaps the labelled
    validation: Tensor
    seed: int
    fingerprint: str  # of the data set it was made for
    include_labeled: bool = True
    left_out: Tensor = field(default_factory=_none)  # cannot or must not be used: broken files, copies of test images
    left_out_test: Tensor = field(default_factory=_none)  # likewise, but indices into `dataset.test`

    def save(self, path: str | Path) -> None:
        """JSON; the unlabelled indices are left out, so the file stays small."""
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
        """The saved split; given the data set, an error where it is not the one the split was made for."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            content = {"left_out": [], "left_out_test": [], **content}  # which older files do not have
            labeled, validation, left_out, left_out_test = (
                _positions(content, part) for part in ("labeled", "validation", "left_out", "left_out_test")
            )
            seed, print_, include_labeled = content["seed"], content["fingerprint"], bool(content["include_labeled"])
            unlabeled = _others(content["counts"]["images"], labeled, validation, left_out, include_labeled)
            split = Split(labeled, unlabeled, validation, seed, print_, include_labeled, left_out, left_out_test)
        except FileNotFoundError as error:
            raise NPMatchError(f"{path}: no such file") from error
        except IsADirectoryError as error:
            raise NPMatchError(f"{path}: a folder; name a split's file, as a run has one: RUN/split.json") from error
        except OSError as error:
            raise NPMatchError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
            raise NPMatchError(f"{path}: not a split written by npmatch ({type(error).__name__}: {error})") from error
        if dataset is not None and not _fits(split, dataset):
            before, now = _num_images(split), len(dataset.train)
            counts = f"{before} training images, here are {now}"
            what = counts if before != now else "labels, classes or file names differ"
            raise NPMatchError(
                f"{path}: this split was made for other data: {what}; use the data it was made for, or make a new "
                "split by training anew"
            )
        return split


def _positions(content: Mapping[str, Any], part: str) -> Tensor:
    """A part of a saved split; a ValueError where it is no list of positions, each once."""
    found = content[part]
    if any(type(position) is not int or position < 0 for position in found) or len(set(found)) < len(found):
        raise ValueError(f"{part} must be positions of images, each once")
    return torch.tensor(found, dtype=torch.int64)


def _fits(split: Split, dataset: Dataset) -> bool:
    """Whether a split was made for these images, and names no other."""
    tested = 0 if dataset.test is None else len(dataset.test)
    within = len(split.left_out_test) == 0 or int(split.left_out_test.max()) < tested
    return split.fingerprint == dataset_fingerprint(dataset) and _num_images(split) == len(dataset.train) and within


def make_split(
    dataset: Dataset,
    labels: int | None,
    seed: int,
    validation: float = 0.0,
    include_labeled: bool = True,
    left_out: Tensor | None = None,
) -> Split:
    """`labels` labelled images in all, as many of each class; None takes every one that has a label.

    `validation` is what to keep out of training: below 1 the share of each class's images not chosen (or, with None, of
    all its labelled images), from 2 on a number of images in all, spread over the classes as those images are. The
    unlabelled set is every other image, the labelled included unless told. Images `left_out` are in none of them.
    """
    left_out = _none() if left_out is None else left_out
    if not 0 <= validation < 1 and (validation < 2 or validation != int(validation)):  # 1 might be meant as all
        raise NPMatchError(
            f"validation={validation}: give a share of at least 0 and below 1, or a number of images from 2 on"
        )
    rng = np.random.default_rng(mix(seed, "split"))
    # Each class is shuffled once. Labelled images come from the front and validation images from the back, so
    # that at one seed a larger label set contains the smaller one.
    members = [rng.permutation(images) for images in _members_by_class(dataset, left_out)]
    wanted = _labels_per_class(labels, len(members), rng)
    for name, images, count in zip(dataset.class_names, members, wanted, strict=True):
        if len(images) < count:
            raise NPMatchError(f"class '{name}' has {len(images)} labelled images, but {count} are wanted")
    held = _held_per_class([len(images) for images in members], wanted, validation, count_all=labels is None)
    ends = [len(images) - n for images, n in zip(members, held, strict=True)]
    chosen = [m[: end if labels is None else n] for m, end, n in zip(members, ends, wanted, strict=True)]
    labeled_index = _sorted(chosen)
    validation_index = _sorted([images[end:] for images, end in zip(members, ends, strict=True)])
    if validation and not len(validation_index):
        raise NPMatchError(f"validation={validation}: no image is left for it; use fewer labels or validation=0")
    unlabeled = _others(len(dataset.train), labeled_index, validation_index, left_out, include_labeled)
    made_for = dataset_fingerprint(dataset)
    return Split(labeled_index, unlabeled, validation_index, seed, made_for, include_labeled, left_out)


def leave_out(split: Split, left_out: Tensor, left_out_test: Tensor) -> Split:
    """`split` less the images at `left_out` of its training set and `left_out_test` of its test set."""
    out = torch.unique(torch.cat([split.left_out, left_out]))
    out_test = torch.unique(torch.cat([split.left_out_test, left_out_test]))
    kept = {name: part[~torch.isin(part, out)] for name, part in vars(split).items() if name in PARTS}
    return replace(split, left_out=out, left_out_test=out_test, **kept)


def with_more_labels(split: Split, dataset: Dataset, positions: Tensor) -> Split:
    """`split` with the images at `positions` among its labelled ones; `dataset` may have more images behind its own."""
    if held_out := set(positions.tolist()) & set(split.validation.tolist()):
        raise NPMatchError(f"image {min(held_out)} of the training set is kept for validation; it takes no label")
    labeled = torch.unique(torch.cat([split.labeled, positions[~torch.isin(positions, split.left_out)]]))
    unlabeled = _others(len(dataset.train), labeled, split.validation, split.left_out, split.include_labeled)
    return replace(split, labeled=labeled, unlabeled=unlabeled, fingerprint=dataset_fingerprint(dataset))


def _members_by_class(dataset: Dataset, left_out: Tensor) -> list[npt.NDArray[np.int64]]:
    """The images of each class that have its label, in order."""
    labels = dataset.train.labels.cpu().numpy().copy()
    labels[left_out.numpy()] = -1
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(len(dataset.class_names) + 1))
    return [order[first:last] for first, last in pairwise(bounds)]


def _labels_per_class(labels: int | None, classes: int, rng: np.random.Generator) -> list[int]:
    """Equal counts, the remainder to classes drawn at random; with None, at least one of each."""
    if labels is None:
        return [1] * classes
    if labels < classes:
        raise NPMatchError(f"labels={labels}: there are {classes} classes, and each needs at least one")
    lucky = set(rng.permutation(classes)[: labels % classes].tolist())
    return [labels // classes + (label in lucky) for label in range(classes)]


def _held_per_class(sizes: list[int], wanted: list[int], validation: float, count_all: bool) -> list[int]:
    """How many images of each class are held out; never one of the `wanted` that training needs."""
    free = [size - need for size, need in zip(sizes, wanted, strict=True)]
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
    # In proportion to the classes, because held-out images must resemble what will be predicted: whole parts first,
    # then one each to the largest remainders. No class can be asked for more than it has, as total ≤ sum(free).
    exact = [total * left / sum(free) for left in free]
    held = [int(share) for share in exact]
    by_remainder = sorted(range(len(free)), key=lambda k: held[k] - exact[k])
    for k in by_remainder[: total - sum(held)]:
        held[k] += 1
    return held


def _others(images: int, labeled: Tensor, validation: Tensor, left_out: Tensor, include_labeled: bool) -> Tensor:
    """The unlabelled set."""
    keep = torch.ones(images, dtype=torch.bool)
    keep[labeled] = include_labeled
    keep[validation] = False
    keep[left_out] = False
    return keep.nonzero().flatten()


def _sorted(parts: list[npt.NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.sort(np.concatenate(parts)).astype(np.int64))


def _num_images(split: Split) -> int:
    """N, from the parts of a split."""
    labeled = 0 if split.include_labeled else len(split.labeled)
    return len(split.unlabeled) + len(split.validation) + len(split.left_out) + labeled


def evaluation_set(dataset: Dataset, split: Split) -> ImageSet | None:
    """The test images; where there are none the validation images; else nothing."""
    return test_set(dataset, split) or validation_set(dataset, split)


def test_set(dataset: Dataset, split: Split) -> ImageSet | None:
    """The images for testing alone, less those left out; nothing where there are none."""
    if dataset.test is None or not len(dataset.test):
        return None
    if not len(split.left_out_test):
        return dataset.test
    kept = torch.ones(len(dataset.test), dtype=torch.bool)
    kept[split.left_out_test] = False
    return select_images(dataset.test, kept.nonzero().flatten())


def validation_set(dataset: Dataset, split: Split) -> ImageSet | None:
    """The labelled images that were held out of training; nothing where none were."""
    return select_images(dataset.train, split.validation) if len(split.validation) else None


def trained_on(split: Split) -> Tensor:
    """The positions of all images that training has seen, labelled or not, sorted."""
    seen: Tensor = torch.unique(torch.cat([split.labeled, split.unlabeled]))
    return seen
