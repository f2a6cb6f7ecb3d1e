"""What a data set and its split are, in a few lines: written beside a run, so that a resumed one can tell a change."""

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

FILES, IMAGES = 4096, 256  # looked at, evenly spaced: all of a small set, and no minutes for a large one


def dataset_fingerprint(dataset: Dataset) -> str:
    """Changes with the number of training images, their labels and names, and the classes."""
    train = dataset.train
    digest = hashlib.sha256(json.dumps([len(train), dataset.class_names, train.names]).encode())
    digest.update(train.labels.cpu().numpy().astype("<i8").tobytes())
    return digest.hexdigest()[:32]


def describe_data(dataset: Dataset, split: Split) -> dict[str, Any]:
    """Sizes and names as they are, long things as digests; of files their sizes, of images in memory their pixels."""
    found = {
        "classes": list(dataset.class_names),
        "shape": list(dataset.train.images.shape),
        **_describe_set(dataset.train, split.left_out),
        **{f"test {key}": value for key, value in _describe_set(dataset.test, split.left_out_test).items()},
    }
    chosen = [split.labeled.tolist(), split.validation.tolist(), split.include_labeled]
    return {**found, "split": _digest(json.dumps(chosen).encode())}


def list_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """'images: 10 → 12' for every part that differs; of digests only that they do."""
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    short = {"images", "test images", "classes", "shape"}
    return [f"{key}: {old.get(key)} → {new.get(key)}" if key in short else f"{key} changed" for key in changed]


def check_same_on_all_ranks(mine: Mapping[str, Any]) -> None:
    """Ranks that have other data than the first would train, or be measured, on a mixture of both."""
    for number, other in enumerate(described := all_gather_object(dict(mine))):
        if changed := list_changes(described[0], other):
            raise NPMatchError(
                f"rank {number} has other data than the first rank ({'; '.join(changed)}); give every machine the same"
            )


def _describe_set(part: ImageSet | None, left_out: torch.Tensor) -> dict[str, Any]:
    if part is None:
        return {"images": 0}
    return {
        "images": len(part),
        "labels": _digest(part.labels.cpu().numpy().astype("<i8").tobytes()),
        "file names": _digest(json.dumps(part.names).encode()),
        "contents": _digest(_sample(part.images, left_out)),
    }


def _sample(images: ImageStore, left_out: torch.Tensor) -> bytes:
    if isinstance(images, FileImages):
        return json.dumps([_size(images.path(i)) for i in _spread(len(images), FILES).tolist()]).encode()
    looked_at = _spread(len(images), IMAGES)
    return images.take(looked_at[~torch.isin(looked_at, left_out)]).cpu().numpy().tobytes()


def _spread(length: int, wanted: int) -> torch.Tensor:
    """At most `wanted` positions below `length`, evenly spaced."""
    number = min(length, wanted)
    return torch.arange(number) * length // max(number, 1)


def _size(path: os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1  # whoever reads the file says what is wrong with it


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
