"""The split of the training images into labelled, unlabelled and validation images, and its file, split.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.data.fingerprint import all_but, dataset_fingerprint
from npmatch.data.images import select_images
from npmatch.data.labels import image_name, positions_by_name
from npmatch.errors import NPMatchError
from npmatch.files import read_regular, write_atomically
from npmatch.types import Dataset, ImageSet

SAVED_PARTS = ("labeled", "validation", "left_out", "left_out_test")  # the unlabelled set follows from them
MAX_IMAGES = 50_000_000  # of a training set


class OtherDataError(NPMatchError):
    """A split was made for other data than it is used with."""


def _empty() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """Positions in `dataset.train` of labelled, unlabelled and validation images, each sorted, int64."""

    labeled: Tensor
    unlabeled: Tensor  # all other images; includes the labelled ones if `include_labeled`
    validation: Tensor
    seed: int
    fingerprint: str  # `dataset_fingerprint` of the data set that the split was made for, without images left out
    include_labeled: bool = True
    left_out: Tensor = field(default_factory=_empty)  # in no part: broken files, copies of held-out images
    left_out_test: Tensor = field(default_factory=_empty)  # the same for the test set: positions in `dataset.test`
    # Names of the images in the parts that are saved, by which they are found in data that has changed since; without
    # an entry for images that have no names.
    names: Mapping[str, list[str]] = field(default_factory=dict)

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
            **{part: getattr(self, part).tolist() for part in SAVED_PARTS},
            "names": dict(self.names),
        }
        write_atomically(Path(path), (json.dumps(content) + "\n").encode())

    @staticmethod
    def load(path: str | Path, dataset: Dataset | None = None) -> Split:
        """Reads a saved split; with `dataset`, a split that was made for other data is an OtherDataError.

        Files that the split leaves out may have been deleted since.
        """
        try:
            split = _decode(json.loads(read_regular(Path(path)).decode()))
        except FileNotFoundError as error:
            raise NPMatchError(f"{path}: no such file") from error
        except IsADirectoryError as error:
            raise NPMatchError(f"{path}: a folder; name a split's file, for example RUN/split.json") from error
        except OSError as error:
            raise NPMatchError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError, AttributeError) as error:
            raise NPMatchError(f"{path}: not a split written by npmatch ({type(error).__name__}: {error})") from error
        if dataset is None:
            return split
        found = _find_in(dataset, split)
        if found is None:
            before, now = _num_images(split), len(dataset.train)
            counts = f"{before} training images, here are {now}"
            difference = counts if before != now else "labels, classes or file names differ"
            raise OtherDataError(
                f"{path}: this split was made for other data: {difference}; use the data it was made for, or start "
                "a new run, which draws a new split"
            )
        return found


def _decode(content: dict[str, Any]) -> Split:
    """The split in the content of a file; an error of Python if it does not hold one."""
    content = {"left_out": [], "left_out_test": [], "names": {}, **content}  # missing in older files
    parts = {part: _positions(content, part) for part in SAVED_PARTS}
    for part, names in content["names"].items():
        if not all(isinstance(name, str) for name in names) or len(names) != len(parts[part]):
            raise ValueError(f"names of {part} must be one for each image")
    include_labeled, images = bool(content["include_labeled"]), content["counts"]["images"]
    unlabeled = _unlabeled(images, parts["labeled"], parts["validation"], parts["left_out"], include_labeled)
    facts: dict[str, Any] = {key: content[key] for key in ("seed", "fingerprint", "names")}
    return Split(unlabeled=unlabeled, include_labeled=include_labeled, **{**facts, **parts})


def _positions(content: Mapping[str, Any], part: str) -> Tensor:
    """A part of a saved split; a ValueError if it is not a list of distinct positions."""
    positions = content[part]
    if any(type(one) is not int or one < 0 for one in positions) or len(set(positions)) < len(positions):
        raise ValueError(f"{part} must be positions of images, each once")
    return torch.tensor(positions, dtype=torch.int64)


def split_of(
    dataset: Dataset,
    labeled: Tensor,
    validation: Tensor,
    seed: int,
    include_labeled: bool = True,
    left_out: Tensor | None = None,
    left_out_test: Tensor | None = None,
) -> Split:
    """The split of a data set with these parts; the unlabelled set, names and fingerprint follow from them."""
    left_out, left_out_test = (_empty() if part is None else part for part in (left_out, left_out_test))
    names = {}
    if dataset.train.names:
        parts = {"labeled": labeled, "validation": validation, "left_out": left_out}
        names = {part: _names_at(dataset.train, positions) for part, positions in parts.items()}
    if dataset.test is not None and dataset.test.names:
        names["left_out_test"] = _names_at(dataset.test, left_out_test)
    unlabeled = _unlabeled(len(dataset.train), labeled, validation, left_out, include_labeled)
    fingerprint = _fingerprint_without(dataset, left_out)
    return Split(labeled, unlabeled, validation, seed, fingerprint, include_labeled, left_out, left_out_test, names)


def _find_in(dataset: Dataset, split: Split) -> Split | None:
    """The split with its positions in `dataset`; None if it was made for other data.

    Images that are left out are known by their names. Whether their files still exist, and thus the positions of the
    images after them, may have changed.
    """
    left_out = images_of_part(dataset.train, split, "left_out")
    left_out_test = images_of_part(dataset.test, split, "left_out_test")
    for part, found in (("left_out", left_out), ("left_out_test", left_out_test)):
        if part not in split.names and len(found) < len(getattr(split, part)):  # arrays have become shorter
            return None
    before, now = all_but(_num_images(split), split.left_out), all_but(len(dataset.train), left_out)
    if len(before) != len(now) or split.fingerprint != _fingerprint_without(dataset, left_out):
        return None
    moved = torch.full((_num_images(split),), -1)
    moved[before] = now
    labeled, validation = moved[split.labeled], moved[split.validation]
    return split_of(dataset, labeled, validation, split.seed, split.include_labeled, left_out, left_out_test)


def images_of_part(images: ImageSet | None, split: Split, part: str) -> Tensor:
    """Positions, in `images`, of the images that are in a part of a split and are still there."""
    if images is None or split.names.get(part) == []:
        return _empty()
    if part in split.names:
        position = positions_by_name(images)
        return _sorted(position[name] for name in split.names[part] if name in position)
    positions: Tensor = getattr(split, part)
    return positions[positions < len(images)]  # images without names are known by their positions


def _fingerprint_without(dataset: Dataset, left_out: Tensor) -> str:
    """The fingerprint of a data set without the training images at `left_out`."""
    if not len(left_out):
        return dataset_fingerprint(dataset)
    used = select_images(dataset.train, all_but(len(dataset.train), left_out))
    return dataset_fingerprint(replace(dataset, train=used))


def leave_out(split: Split, dataset: Dataset, left_out: Tensor, left_out_test: Tensor) -> Split:
    """`split` without the training images at `left_out` and the test images at `left_out_test`."""
    out = torch.unique(torch.cat([split.left_out, left_out]))
    out_test = torch.unique(torch.cat([split.left_out_test, left_out_test]))
    labeled, validation = (part[~torch.isin(part, out)] for part in (split.labeled, split.validation))
    return split_of(dataset, labeled, validation, split.seed, split.include_labeled, out, out_test)


def with_more_labels(split: Split, dataset: Dataset, positions: Tensor) -> Split:
    """`split` with the images at `positions` labelled too; `dataset` may have new images at its end."""
    if held_out := set(positions.tolist()) & set(split.validation.tolist()):
        raise NPMatchError(f"image {min(held_out)} of the training set is kept for validation and cannot be labelled")
    labeled = torch.unique(torch.cat([split.labeled, positions[~torch.isin(positions, split.left_out)]]))
    kept = (split.validation, split.seed, split.include_labeled, split.left_out, split.left_out_test)
    return split_of(dataset, labeled, *kept)


def _unlabeled(images: int, labeled: Tensor, validation: Tensor, left_out: Tensor, include_labeled: bool) -> Tensor:
    """Positions of the unlabelled set, given the number of training images and the other parts."""
    if images > MAX_IMAGES:  # before a stranger's file can make us allocate memory
        raise ValueError(f"{images} images are more than the {MAX_IMAGES:,} allowed")
    is_unlabeled = torch.ones(images, dtype=torch.bool)
    is_unlabeled[labeled] = include_labeled
    is_unlabeled[validation] = False
    is_unlabeled[left_out] = False
    return is_unlabeled.nonzero().flatten()


def _names_at(images: ImageSet, positions: Tensor) -> list[str]:
    return [image_name(images, position) for position in positions.tolist()]


def _sorted(positions: Iterable[int]) -> Tensor:
    return torch.tensor(sorted(positions), dtype=torch.int64)


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
    return select_images(dataset.test, all_but(len(dataset.test), split.left_out_test))


def validation_set(dataset: Dataset, split: Split) -> ImageSet | None:
    """The labelled images that were held out of training; None if there are none."""
    return select_images(dataset.train, split.validation) if len(split.validation) else None


def trained_on(split: Split) -> Tensor:
    """Sorted positions of all images used in training, labelled or not."""
    positions: Tensor = torch.unique(torch.cat([split.labeled, split.unlabeled]))
    return positions
