"""The registry of data sources: built-in ones by name, and a user's own function as package.module:function."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from npmatch.data.images import ArrayImages
from npmatch.data.sources.audited import note_audited
from npmatch.data.sources.benchmarks import read_digits, read_stl10, read_svhn
from npmatch.data.sources.cifar import read_cifar10, read_cifar10_open, read_cifar100
from npmatch.data.sources.folders import list_folder, read_imagenet
from npmatch.data.sources.listing import Listing
from npmatch.data.sources.mnist import locate_fashion_mnist, read_fashion_mnist, read_mnist
from npmatch.data.sources.tables import list_csv
from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.types import FOREIGN, Dataset, ImageSet, ImageStore
from npmatch.user_code import import_name


class Source(NamedTuple):
    """A built-in source of images: how it is read, and the files it needs."""

    read: Callable[..., Dataset] | None = None  # called with root if it `expects` files, and size if it has one
    expects: str = ""  # the files expected under root, for error messages
    size: int | None = None  # default side in pixels of images from files; None if their size is fixed
    locate: Callable[[Path | None], Path | None] = lambda root: root  # without --data: $NPMATCH_DATA → root
    list_files: Callable[[Path], Listing] | None = None  # in place of `read`, for a user's own files


def _list_folder(root: Path) -> Listing:
    return note_audited(list_folder(root))


def _list_csv(table: Path) -> Listing:
    return note_audited(list_csv(table))


IDX_FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte and the two of t10k, plain or .gz"
SOURCES = {
    "digits": Source(read_digits),
    "cifar10": Source(read_cifar10, "cifar-10-batches-bin/ or cifar-10-batches-py/"),
    "cifar10-open": Source(read_cifar10_open, "cifar-10-batches-bin/ or cifar-10-batches-py/"),
    "cifar100": Source(read_cifar100, "cifar-100-binary/ or cifar-100-python/"),
    "stl10": Source(read_stl10, "stl10_binary/"),
    "svhn": Source(read_svhn, "train_32x32.mat and test_32x32.mat"),
    "fashion-mnist": Source(
        read_fashion_mnist, f"{IDX_FILES}, or apt-get install dataset-fashion-mnist", locate=locate_fashion_mnist
    ),
    "mnist": Source(read_mnist, IDX_FILES),
    "imagenet": Source(read_imagenet, "train/<wnid>/ and val/<wnid>/", size=256),
    "folder": Source(
        expects="labeled/<class>/, unlabeled/ and perhaps test/<class>/", size=64, list_files=_list_folder
    ),
    "csv": Source(expects="the CSV file itself, with the columns path,label", size=64, list_files=_list_csv),
}


def load_dataset(
    source: str,
    root: Path | None = None,
    image_size: int | None = None,
    missing_ok: bool = False,
    listing: Listing | None = None,
) -> Dataset:
    """Loads a built-in source, or calls the function 'package.module:function'; `root` defaults to $NPMATCH_DATA.

    `image_size` is the side in pixels that images in files are scaled to; other sources have a fixed size. With
    `missing_ok`, a CSV may list files that do not exist, as long as these images are not used. With `listing`, a folder
    or a CSV is not listed again.
    """
    root = find_root(source, root)
    if ":" in source:
        return _validated(import_name(source, "data source")(root), source)
    return _validated(_read_builtin(source, root, image_size, missing_ok, listing), source, lowest=FOREIGN)


def is_listed(source: str) -> bool:
    """Whether a source reads a user's own files, which are listed and checked before training."""
    return source in SOURCES and SOURCES[source].list_files is not None


def list_data(path: Path) -> Listing:
    """Lists the images of an image folder or a CSV, as given to `train --data`."""
    if not path.exists():
        raise NPMatchError(f"{path}: no such file or folder; give an image folder or a CSV with the columns path,label")
    if path.is_file() and path.suffix.lower() != ".csv":
        raise NPMatchError(f"{path}: give an image folder, or a CSV whose name ends in .csv")
    return _list_csv(path) if path.is_file() else _list_folder(path)


def find_root(source: str, root: str | Path | None) -> Path | None:
    """The folder or file of a source: `root`, or else $NPMATCH_DATA or the source's own default place."""
    if root is not None:
        return Path(root).expanduser()
    variable = os.environ.get("NPMATCH_DATA")
    default = Path(variable).expanduser() if variable else None
    return SOURCES[source].locate(default) if source in SOURCES else default


def _read_builtin(
    name: str, root: Path | None, image_size: int | None, missing_ok: bool, listing: Listing | None
) -> Dataset:
    if name == "folder" and root is not None and root.suffix.lower() == ".csv":
        name = "csv"
    if name not in SOURCES:
        raise NoSuchChoiceError("data source", name, list(SOURCES))
    if image_size is not None and image_size < 1:
        raise NPMatchError(f"image_size={image_size}: give the side in pixels, 1 or more")
    source = SOURCES[name]
    size = source.size if image_size is None else image_size
    if source.list_files is not None and size is not None:
        listing = listing or source.list_files(_existing(root, name, source.expects))
        return listing.dataset(name, size, missing_ok)
    assert source.read is not None
    arguments: list[Path | int] = [_existing(root, name, source.expects)] if source.expects else []
    dataset = source.read(*arguments, *([size] if source.size is not None and size is not None else []))
    if image_size not in (None, dataset.train.images.shape[-1]):
        own = dataset.train.images.shape[-1]
        raise NPMatchError(f"image_size={image_size}: the images of {name} are {own} pixels wide; leave it out")
    return dataset


def _existing(root: Path | None, name: str, expects: str) -> Path:
    """`root`; an error that says what it should contain if it is missing or a file in place of a folder."""
    if root is None:
        raise NPMatchError(f"{name}: pass --data DIR or set NPMATCH_DATA; expected there: {expects}")
    if not root.exists():
        raise NPMatchError(f"{root}: no such file or folder; give --data DIR, expected there for {name}: {expects}")
    if root.is_file() and name != "csv":
        table = ", or a CSV whose name ends in .csv" if name == "folder" else ""
        raise NPMatchError(f"{root}: a file; give --data DIR, expected there for {name}: {expects}{table}")
    return root


def _validated(dataset: object, source: str, lowest: int = -1) -> Dataset:
    """`dataset` if it keeps the rules that the rest of the package relies on; a user's function may break them.

    `lowest` is the lowest label of a training image.
    """
    if not isinstance(dataset, Dataset):
        raise NPMatchError(f"{source}: returned {type(dataset).__name__}, but must return an npmatch.Dataset")
    classes = len(dataset.class_names)
    if classes < 2:
        raise NPMatchError(f"{source}: class_names has {classes} names; two or more are needed")
    _check_images(dataset.train, classes, f"{source}, train", lowest)
    for name, part, least in (("test", dataset.test, -1), ("foreign_test", dataset.foreign_test, FOREIGN)):
        if part is not None:
            _check_images(part, classes, f"{source}, {name}", least)
            if part.images.shape != dataset.train.images.shape:
                raise NPMatchError(f"{source}: training and test images differ in their shape")
    for name, values in (("mean", dataset.mean), ("std", dataset.std)):
        if len(values) not in (1, dataset.train.images.shape[0]):
            raise NPMatchError(f"{source}: {name} has {len(values)} values; give one for each channel")
    return dataset


def _check_images(part: ImageSet, classes: int, where: str, lowest: int) -> None:
    """Raises an error if images, labels and names do not fit each other; converts arrays to an image store."""
    if isinstance(part.images, Tensor | np.ndarray):  # arrays are accepted in place of a store
        part.images = ArrayImages(torch.as_tensor(part.images))
    if not isinstance(part.images, ImageStore):
        kind = type(part.images).__name__
        raise NPMatchError(f"{where}: images must be a uint8 tensor N C H W or an npmatch.ImageStore, not {kind}")
    _, height, width = part.images.shape
    if height != width:  # predict, export and the web page make every picture square
        raise NPMatchError(f"{where}: images of {height}×{width} pixels must be square; crop or pad them")
    part.labels = torch.as_tensor(part.labels)
    if part.labels.dtype != torch.int64 or part.labels.ndim != 1:
        raise NPMatchError(f"{where}: labels must be int64 of one dimension, not {part.labels.dtype}")
    if len(part.labels) == 0 or len(part.images) != len(part.labels):
        raise NPMatchError(f"{where}: {len(part.images)} images and {len(part.labels)} labels")
    if part.names and len(part.names) != len(part.labels):
        raise NPMatchError(f"{where}: {len(part.names)} names for {len(part.labels)} images")
    low, high = int(part.labels.min()), int(part.labels.max())
    if low < lowest or high >= classes:
        raise NPMatchError(f"{where}: labels from {low} to {high}; valid are 0 to {classes - 1}, and −1 for unlabelled")
