"""Compact descriptions of a data set and its split, by which a resumed run or another rank detects a change."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from npmatch.data.images import FileImages
from npmatch.distributed.ranks import all_gather_object
from npmatch.errors import NPMatchError
from npmatch.types import Dataset, ImageSet, ImageStore

if TYPE_CHECKING:
    from npmatch.data.split import Split  # which imports this module

FILES, IMAGES = 4096, 256  # sampled at even distances: all of a small set, and quick for a large one


def dataset_fingerprint(dataset: Dataset) -> str:
    """Hash of what a split depends on: the number of training images, their labels and names, and the class names."""
    train = dataset.train
    digest = hashlib.sha256(json.dumps([len(train), dataset.class_names, train.names]).encode())
    digest.update(train.labels.cpu().numpy().astype("<i8").tobytes())
    return digest.hexdigest()[:32]


def describe_data(dataset: Dataset, split: Split) -> dict[str, Any]:
    """The content of data.json: sizes and class names as they are, labels, file names, pixels and split as hashes.

    For images in files the file sizes are hashed in place of pixels. Images that are left out are no part of it, as
    their files may be deleted.
    """
    parts = {
        "classes": list(dataset.class_names),
        "shape": list(dataset.train.images.shape),
        **_describe_set(dataset.train, split.left_out),
        **{f"test {key}": value for key, value in _describe_set(dataset.test, split.left_out_test).items()},
    }
    used = all_but(len(dataset.train), split.left_out)
    labeled, validation = (torch.searchsorted(used, part).tolist() for part in (split.labeled, split.validation))
    positions = [labeled, validation, split.include_labeled]
    return {**parts, "split": _digest(json.dumps(positions).encode())}


def hash_contents(images: ImageStore, positions: torch.Tensor) -> str:
    """Hash of these images, for what is kept of them: of names, sizes and times of change of files, of other pixels."""
    digest = hashlib.sha256(json.dumps(list(images.shape)).encode())
    for start in range(0, len(positions), FILES):
        chunk = positions[start : start + FILES]
        if isinstance(images, FileImages):
            paths = [images.path(i) for i in chunk.tolist()]
            digest.update(json.dumps([[str(path), *_size_and_time(path)] for path in paths]).encode())
        else:
            digest.update(images.take(chunk).cpu().numpy().tobytes())
    return digest.hexdigest()


def list_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One text for each part that differs: 'images: 10 → 12' or, for hashes, 'labels changed'."""
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    short = {"images", "test images", "classes", "shape"}
    return [f"{key}: {old.get(key)} → {new.get(key)}" if key in short else f"{key} changed" for key in changed]


def check_same_on_all_ranks(description: Mapping[str, Any]) -> None:
    """Raises an error if the ranks have different data: they would train, or evaluate, on a mixture."""
    descriptions = all_gather_object(dict(description))
    for rank, other in enumerate(descriptions):
        if changed := list_changes(descriptions[0], other):
            raise NPMatchError(
                f"rank {rank} has other data than the first rank ({'; '.join(changed)}); give every machine the same"
            )


def _describe_set(part: ImageSet | None, left_out: torch.Tensor) -> dict[str, Any]:
    if part is None:
        return {"images": 0}
    used = all_but(len(part), left_out)
    return {
        "images": len(used),
        "labels": _digest(part.labels[used].cpu().numpy().astype("<i8").tobytes()),
        "file names": _digest(json.dumps([part.names[i] for i in used.tolist()] if part.names else []).encode()),
        "contents": _digest(_sample(part.images, used)),
    }


def _sample(images: ImageStore, used: torch.Tensor) -> bytes:
    """File sizes or pixels of some of the images at `used`."""
    if isinstance(images, FileImages):
        return json.dumps(
            [_size_and_time(images.path(i))[0] for i in used[_spread(len(used), FILES)].tolist()]
        ).encode()
    return images.take(used[_spread(len(used), IMAGES)]).cpu().numpy().tobytes()


def all_but(images: int, positions: torch.Tensor) -> torch.Tensor:
    """All positions below `images` but these, sorted."""
    is_other = torch.ones(images, dtype=torch.bool)
    is_other[positions] = False
    return is_other.nonzero().flatten()


def _spread(length: int, wanted: int) -> torch.Tensor:
    """At most `wanted` evenly spaced positions below `length`."""
    number = min(length, wanted)
    return torch.arange(number) * length // max(number, 1)


def _size_and_time(path: os.PathLike[str]) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return -1, -1  # reading the file later gives the error
    return found.st_size, found.st_mtime_ns


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
