"""Images in folders named after their classes: a user's own, and ImageNet's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from npmatch.data.sources.listing import ListedFile, Listing, Part
from npmatch.errors import NPMatchError
from npmatch.files import in_utf8
from npmatch.types import Dataset

EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
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
PARTS = ("labeled", "unlabeled", "test")
RAW = (".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2")  # a camera's
# Pictures too, but of formats that are not read; cameras and phones write most of them.
UNREAD = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".tga", ".psd", ".svg", ".ico", *RAW)


def read_imagenet(root: Path, size: int) -> Dataset:
    """`train/<wnid>/*` and `val/<wnid>/*` under `root`, every training image with its label."""
    class_folders(root / "val")  # the published archive has no class folders here; say so before hours are spent
    listing = Listing(root, class_folders(root / "train"))
    _list_classes(listing, root / "train", "labeled")
    _list_classes(listing, root / "val", "test")
    return listing.dataset("imagenet", size)


def list_folder(root: Path) -> Listing:
    """`labeled/<class>/**`, `unlabeled/**` and, where there is one, `test/<class>/**` under a user's `root`.

    Faults are collected, not raised.
    """
    listing = Listing(root)
    _note_others(listing)
    try:
        listing.classes = class_folders(root / "labeled")
    except NPMatchError as fault:
        listing.faults.append(str(fault) + _what_to_move(listing))
    for name in listing.classes:
        if in_utf8(name) != name:  # it will be written into files of text: model, report, export
            listing.faults.append(f"{root / 'labeled' / name}: the name of this class folder is not UTF-8; rename it")
    if (root / "labeled").is_dir():
        _list_classes(listing, root / "labeled", "labeled")
    if (root / "unlabeled").is_dir():
        _list_images(listing, root / "unlabeled", "unlabeled")
    if (root / "test").is_dir():
        _list_classes(listing, root / "test", "test")
    return listing


def _note_others(listing: Listing) -> None:
    """What lies beside the three folders: passed over in silence, most images might be missing."""
    root = listing.root
    for name in sorted(set(os.listdir(root)) - set(PARTS)):
        if (meant := name.lower().replace("ll", "l")) in PARTS and _is_class(root, name):
            found = (root / meant).exists() and (root / meant).samefile(root / name)  # where capitals do not count
            listing.faults += [] if found else [f"{root / name}: rename this folder to '{meant}'"]
        elif _is_class(root, name) and any(images for _, images in walk_images(root / name)):
            listing.remark("unused-folder", name)
        elif is_image(name):
            listing.remark("no-class-folder", name)


def _what_to_move(listing: Listing) -> str:
    """What to do with a folder whose class folders lie in it directly, as other programs want them."""
    found = listing.remarks.get("unused-folder", [])
    if not found or (listing.root / "labeled").exists():
        return ""
    return f"; move the folders of the classes into it, if '{found[0]}' is one"


def class_folders(folder: Path) -> list[str]:
    """The names of the class folders, sorted; their order is the order of the labels."""
    if not folder.is_dir():
        raise NPMatchError(f"{folder}: no such folder; it must hold one folder of images for each class")
    classes = [name for name in sorted(os.listdir(folder)) if _is_class(folder, name)]
    if not classes:
        raise NPMatchError(f"{folder}: no class folder in it; put the images of each class into a folder of its own")
    if len(classes) < 2:
        raise NPMatchError(f"{folder}: '{classes[0]}' is the only class folder; add at least one more class")
    return classes


def _list_classes(listing: Listing, folder: Path, part: Part) -> None:
    """The images of every class folder."""
    for name in sorted(os.listdir(folder)):
        if not _is_class(folder, name):
            kind = "hidden" if name.startswith(".") else "no-class-folder"
            listing.remark(kind, f"{folder.name}/{name}")
        elif name not in listing.classes and part == "test":
            listing.faults.append(f"{folder / name}: a class that has no training folder; rename or remove it")
        elif not _list_images(listing, folder / name, part, name):
            if part == "labeled":
                fault = "no image in this class folder; add some or remove the folder"
                listing.faults.append(f"{folder / name}: {fault}")
            else:
                listing.remark("empty-folder", f"{folder.name}/{name}")


def _list_images(listing: Listing, folder: Path, part: Part, label: str = "") -> int:
    """Adds the images of `folder` and of the folders in it; returns how many."""
    found = 0
    for where, folders, files in os.walk(folder):
        base = os.path.relpath(where, listing.root).replace(os.sep, "/")
        for name in sorted(folders):
            if os.path.islink(os.path.join(where, name)):  # may lead in circles, so it is not followed
                listing.remark("linked-folder", f"{base}/{name}")
            elif name.startswith("."):
                listing.remark("hidden", f"{base}/{name}")
        folders[:] = _entered(folders)
        for name in sorted(files):
            if is_image(name):
                listing.files.append(ListedFile(f"{base}/{name}", part, label))
                found += 1
                if label and where != str(folder):
                    listing.remark("nested", f"{base}/{name}")
            else:
                listing.remark(_why_unused(name), f"{base}/{name}")
    return found


def _why_unused(name: str) -> str:
    if name.startswith("."):
        return "hidden"
    return "unread-format" if is_unread(name) else "other-file"


def walk_images(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """`folder` and every folder below it, each with the names of its images, in a fixed order; hidden ones left out."""
    for where, folders, files in os.walk(folder):
        folders[:] = _entered(folders)
        yield where, sorted(name for name in files if is_image(name))


def walk_pictures(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """As `walk_images`, with what would be missed: pictures of formats not read, links to folders elsewhere."""
    top = os.path.realpath(folder)
    for where, folders, files in os.walk(folder):
        folders[:] = _entered(folders)
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        elsewhere = [name for name in links if not _is_within(os.path.realpath(os.path.join(where, name)), top)]
        yield where, sorted([name for name in files if is_image(name) or is_unread(name)] + elsewhere)


def _is_within(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def _entered(folders: list[str]) -> list[str]:
    return sorted(name for name in folders if not name.startswith("."))


def _is_class(folder: Path, name: str) -> bool:
    return not name.startswith(".") and os.path.isdir(os.path.join(folder, name))


def is_image(name: str) -> bool:
    """Whether a file's name is that of an image, and not hidden."""
    return _ends_in(name, EXTENSIONS)


def is_unread(name: str) -> bool:
    """Whether a file's name is that of a picture whose format is not read, and not hidden."""
    return _ends_in(name, UNREAD)


def is_raw(name: str) -> bool:
    """Whether a file's name is that of a camera's raw picture: TIFF readers would find its thumbnail alone."""
    return _ends_in(name, RAW)


def _ends_in(name: str, endings: tuple[str, ...]) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in endings
