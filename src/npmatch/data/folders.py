"""Images in folders named after their classes: a user's own, and ImageNet's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from npmatch.data.images import FileImages
from npmatch.types import Dataset, ImageSet, NPMatchError

EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".ppm",
    ".pgm",
    ".pbm",
    ".pnm",
)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_folder(root: Path, size: int) -> Dataset:
    """`labeled/<class>/*`, `unlabeled/**` and, where there is one, `test/<class>/*` under `root`."""
    for misspelt in ("labelled", "unlabelled"):  # would be passed over in silence, and most images with it
        if (root / misspelt).is_dir():
            raise NPMatchError(f"{root / misspelt}: rename this folder to '{misspelt.replace('ll', 'l')}'")
    classes = class_folders(root / "labeled")
    labeled, labels = _list_classes(root / "labeled", classes)
    unlabeled = [
        os.path.join(os.path.relpath(where, root), name)
        for where, names in walk_images(root / "unlabeled")
        for name in names
    ]
    train = image_set(root, labeled + unlabeled, labels + [-1] * len(unlabeled), size)
    test = None
    if (root / "test").is_dir():
        test = image_set(root, *_list_classes(root / "test", classes), size)
    return Dataset("folder", tuple(classes), train, test, IMAGENET_MEAN, IMAGENET_STD)


def read_imagenet(root: Path, size: int) -> Dataset:
    """`train/<wnid>/*` and `val/<wnid>/*` under `root`, every training image with its label."""
    classes = class_folders(root / "train")
    class_folders(root / "val")  # the published archive has no class folders here; say so before hours are spent
    train, test = (image_set(root, *_list_classes(root / part, classes), size) for part in ("train", "val"))
    return Dataset("imagenet", tuple(classes), train, test, IMAGENET_MEAN, IMAGENET_STD)


def image_set(root: Path, files: list[str], labels: list[int], size: int) -> ImageSet:
    """`files` are relative to `root`, so that equal folders in two places are equal data sets."""
    images = FileImages([os.path.join(root, file) for file in files], size)
    return ImageSet(images, torch.tensor(labels, dtype=torch.int64), [file.replace(os.sep, "/") for file in files])


def class_folders(folder: Path) -> list[str]:
    """The names of the class folders, sorted; their order is the order of the labels."""
    if not folder.is_dir():
        raise NPMatchError(f"{folder}: no such folder; it must hold one folder of images for each class")
    classes = sorted(entry.name for entry in _visible(folder) if entry.is_dir())
    if not classes:
        raise NPMatchError(f"{folder}: no class folder in it; put the images of each class into a folder of its own")
    if len(classes) < 2:
        raise NPMatchError(f"{folder}: '{classes[0]}' is the only class folder; add at least one more class")
    return classes


def _list_classes(folder: Path, classes: list[str]) -> tuple[list[str], list[int]]:
    """The images of every class folder, relative to `folder`'s parent, and their labels."""
    number = {name: label for label, name in enumerate(classes)}
    files, labels = [], []
    for name in sorted(entry.name for entry in _visible(folder) if entry.is_dir()):
        if name not in number:
            raise NPMatchError(f"{folder / name}: a class that has no training folder; rename or remove it")
        images = sorted(entry.name for entry in _visible(folder / name) if is_image(entry.name) and entry.is_file())
        if not images:
            raise NPMatchError(f"{folder / name}: no image in this class folder; add some or remove the folder")
        files += [os.path.join(folder.name, name, image) for image in images]
        labels += [number[name]] * len(images)
    return files, labels


def walk_images(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """`folder` and every folder below it, each with the names of its images, in a fixed order; hidden ones left out."""
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield where, sorted(name for name in files if is_image(name))


def _visible(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from (entry for entry in entries if not entry.name.startswith("."))


def is_image(name: str) -> bool:
    """Whether a file's name is that of an image, and not hidden."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS
