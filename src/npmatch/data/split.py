"""Which training images are labelled, unlabelled, or kept for validation: chosen by a seed, then saved."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from npmatch.draws import mix
from npmatch.files import write_atomically
from npmatch.types import Dataset, NPMatchError


@dataclass(frozen=True, eq=False)
class Split:
    """Indices into `dataset.train`, each sorted, int64."""

    labeled: Tensor
    unlabeled: Tensor  # follows from the other two: all images, less validation and perhaps less the labelled
    validation: Tensor
    seed: int
    fingerprint: str  # of the data set it was made for
    include_labeled: bool = True

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
        }
        write_atomically(Path(path), (json.dumps(content) + "\n").encode())

    @staticmethod
    def load(path: str | Path, dataset: Dataset | None = None) -> Split:
        """The saved split; given the data set, an error where it is not the one the split was made for."""
        try:
            content = json.loads(Path(path).read_text())
            labeled = torch.tensor(content["labeled"], dtype=torch.int64)
            validation = torch.tensor(content["validation"], dtype=torch.int64)
            include_labeled = bool(content["include_labeled"])
            unlabeled = _others(content["counts"]["images"], labeled, validation, include_labeled)
            split = Split(labeled, unlabeled, validation, content["seed"], content["fingerprint"], include_labeled)
        except FileNotFoundError as error:
            raise NPMatchError(f"{path}: no such file") from error
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
            raise NPMatchError(f"{path}: not a split written by npmatch ({error!r})") from error
        if dataset is not None and split.fingerprint != fingerprint(dataset):
            raise NPMatchError(
                f"{path}: this split was made for other data: images, labels, classes or file names differ; "
                "use the data it was made for, or make a new split"
            )
        return split


def make_split(
    dataset: Dataset,
    labels: int | None,
    seed: int,
    validation: float = 0.0,
    include_labeled: bool = True,
) -> Split:
    """`labels` labelled images in all, as many of each class; None takes every one that has a label.

    `validation` is the share of each class's images not chosen (or, with None, of all its labelled images) to
    keep out of training. The unlabelled set is every other image, the labelled included unless told.
    """
    if not 0 <= validation < 1:
        raise NPMatchError(f"validation={validation}: give a share of at least 0 and below 1")
    rng = np.random.default_rng(mix(seed, "split"))
    # Each class is shuffled once. Labelled images come from the front and validation images from the back, so
    # that at one seed a larger label set contains the smaller one.
    members = [rng.permutation(images) for images in _members_by_class(dataset)]
    wanted = _labels_per_class(labels, len(members), rng)
    chosen, held_out = [], []
    for name, images, count in zip(dataset.class_names, members, wanted, strict=True):
        if len(images) < count:
            raise NPMatchError(f"class '{name}' has {len(images)} labelled images, but {count} are wanted")
        pool = len(images) - (0 if labels is None else count)
        held = min(max(1, round(validation * pool)), len(images) - count) if validation else 0
        end = len(images) - held
        chosen.append(images[: end if labels is None else count])
        held_out.append(images[end:])
    labeled_index, validation_index = _sorted(chosen), _sorted(held_out)
    if validation and not len(validation_index):
        raise NPMatchError(f"validation={validation}: no image is left for it; use fewer labels or validation=0")
    unlabeled = _others(len(dataset.train), labeled_index, validation_index, include_labeled)
    return Split(labeled_index, unlabeled, validation_index, seed, fingerprint(dataset), include_labeled)


def with_more_labels(split: Split, dataset: Dataset, positions: Tensor) -> Split:
    """`split` with the images at `positions` among its labelled ones; `dataset` may have more images behind its own."""
    if held_out := set(positions.tolist()) & set(split.validation.tolist()):
        raise NPMatchError(f"image {min(held_out)} of the training set is kept for validation; it takes no label")
    labeled = torch.unique(torch.cat([split.labeled, positions]))
    unlabeled = _others(len(dataset.train), labeled, split.validation, split.include_labeled)
    return replace(split, labeled=labeled, unlabeled=unlabeled, fingerprint=fingerprint(dataset))


def fingerprint(dataset: Dataset) -> str:
    """Changes with the number of training images, their labels and names, and the classes."""
    train = dataset.train
    digest = hashlib.sha256(json.dumps([len(train), dataset.class_names, train.names]).encode())
    digest.update(train.labels.cpu().numpy().astype("<i8").tobytes())
    return digest.hexdigest()[:32]


def _members_by_class(dataset: Dataset) -> list[npt.NDArray[np.int64]]:
    """The images of each class that have its label, in order."""
    labels = dataset.train.labels.cpu().numpy()
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


def _others(images: int, labeled: Tensor, validation: Tensor, include_labeled: bool) -> Tensor:
    """The unlabelled set."""
    keep = torch.ones(images, dtype=torch.bool)
    keep[labeled] = include_labeled
    keep[validation] = False
    return keep.nonzero().flatten()


def _sorted(parts: list[npt.NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.sort(np.concatenate(parts)).astype(np.int64))


def _num_images(split: Split) -> int:
    """N, from the parts of a split."""
    return len(split.unlabeled) + len(split.validation) + (0 if split.include_labeled else len(split.labeled))
