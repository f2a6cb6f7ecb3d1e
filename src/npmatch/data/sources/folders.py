"""Images in folders named after their classes: a user's own folder, and ImageNet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from npmatch.data.images import EXTENSIONS
from npmatch.data.sources.audited import AUDITED, read_audited
from npmatch.data.sources.label_table import LABEL_LOCK, LABEL_TABLE, apply_given_labels, read_answers
from npmatch.data.sources.listing import ListedFile, Listing, Part
from npmatch.data.sources.tables import read_bytes
from npmatch.data.sources.walk import names_in, unreadable, walk
from npmatch.errors import NPMatchError
from npmatch.files import in_utf8
from npmatch.types import Dataset

IMAGE_EXTENSIONS = tuple(extension for extensions in EXTENSIONS.values() for extension in extensions)
PARTS = ("labeled", "unlabeled", "test")
RAW_EXTENSIONS = (".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2")  # raw files of cameras
# Pictures in formats that are not read, most of them written by cameras and phones.
UNREAD_EXTENSIONS = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".tga", ".psd", ".svg", ".ico", *RAW_EXTENSIONS)


def read_imagenet(root: Path, size: int) -> Dataset:
    """ImageNet from `train/<wnid>/*` and `val/<wnid>/*` under `root`; every training image has its label."""
    class_folders(root / "val")  # fails early: the published archive has no class folders here
    listing = Listing(root, class_folders(root / "train"))
    _list_classes(listing, root / "train", "labeled")
    _list_classes(listing, root / "val", "test")
    return listing.dataset("imagenet", size)


def list_folder(root: Path, labels: bytes | None = None) -> Listing:
    """Lists `labeled/<class>/**`, `unlabeled/**` and, if it exists, `test/<class>/**` under a user's `root`.

    The labels may also be in the table `labels.csv`. Without a folder `labeled` or `unlabeled`, the images may then lie
    anywhere under `root`. Faults are collected in the listing, not raised. `labels` is the content of a table to use in
    place of that file, which may have changed; if it is empty, there was no such file.
    """
    listing = Listing(root, table=labels or None)
    table = root / LABEL_TABLE
    if labels is None and table.is_file():
        listing.table = read_bytes(table)
    if listing.table is None:
        _note_other_entries(listing)  # an error if the root cannot be read
        try:
            listing.classes = class_folders(root / "labeled")
        except NPMatchError as error:
            listing.faults.append(str(error) + (_hint_to_move(listing) or f"; or list labels in {table}"))
        _list_parts(listing)
        return listing
    given = read_answers(root, table, listing.table)
    listing.classes = sorted({*folder_classes(root), *(answer.label for answer in given.values())} - {""})
    if len(listing.classes) < 2:
        fault = f"{len(listing.classes)} class(es) among the labels; label images of two or more"
        listing.faults.append(f"{table}: {fault}")
    if is_flat(root):
        _list_images(listing, root, "unlabeled", left_out=("test",))
    else:
        _note_other_entries(listing)
    _list_parts(listing)
    apply_given_labels(listing, table, given)
    return listing


def is_flat(root: Path) -> bool:
    """Whether a folder's images lie in no folder `labeled` or `unlabeled`."""
    return not any((root / part).is_dir() for part in ("labeled", "unlabeled"))


def list_unlabeled(root: Path) -> Listing:
    """Lists the images of a folder for somebody who has to label the first ones.

    Those with a label, for the test or for an audit are not among them.
    """
    listing = Listing(root)
    names_in(root)  # an error if the root cannot be read
    _list_images(listing, root if is_flat(root) else root / "unlabeled", "unlabeled", left_out=("test",))
    table = root / LABEL_TABLE
    given = read_answers(root, table) if table.is_file() else {}
    answered = {name for name, answer in given.items() if answer.is_given} | set(read_audited(root))
    listing.files = [file for file in listing.files if file.name not in answered]
    return listing


def list_pictures(root: Path) -> Listing:
    """Lists all images of a folder but test images: those in class folders with their labels, the others without.

    The table of labels is not read: what it says may change while people label.
    """
    listing = Listing(root, folder_classes(root))
    names_in(root)  # an error if the root cannot be read
    if is_flat(root):
        _list_images(listing, root, "unlabeled", left_out=("test",))
    else:
        for name in listing.classes:
            _list_images(listing, root / "labeled" / name, "labeled", name)
        if (root / "unlabeled").is_dir():
            _list_images(listing, root / "unlabeled", "unlabeled")
    return listing


def folder_classes(root: Path) -> list[str]:
    """The classes that have a folder in `root/labeled`, sorted."""
    return _visible_folders(root / "labeled") if (root / "labeled").is_dir() else []


def _list_parts(listing: Listing) -> None:
    """Adds the images in the three folders to a listing, as far as these exist."""
    root = listing.root
    for name in listing.classes:
        if in_utf8(name) != name:  # class names are written into text files: model, report, export
            listing.faults.append(f"{root / 'labeled' / name}: the name of this class folder is not UTF-8; rename it")
    if (root / "labeled").is_dir():
        _list_classes(listing, root / "labeled", "labeled")
    if (root / "unlabeled").is_dir():
        _list_images(listing, root / "unlabeled", "unlabeled")
    if (root / "test").is_dir():
        _list_classes(listing, root / "test", "test")


def _note_other_entries(listing: Listing) -> None:
    """Reports images beside the three folders, which are not used, and misspelt names of these folders."""
    root = listing.root
    for name in sorted(set(names_in(root)) - set(PARTS)):
        if (meant := name.lower().replace("ll", "l")) in PARTS and _is_visible_folder(root, name):
            # Where file names are not case-sensitive, both names may lead to the same folder.
            is_same = (root / meant).exists() and (root / meant).samefile(root / name)
            listing.faults += [] if is_same else [f"{root / name}: rename this folder to '{meant}'"]
        elif _is_visible_folder(root, name) and _holds_images(root / name):
            listing.remark("unused-folder", name)
        elif is_image(name):
            listing.remark("no-class-folder", name)


def _holds_images(folder: Path) -> bool:
    """Whether there is an image in or below a folder, or a folder that cannot be read and may hold some."""
    return any(inside.problem or any(map(is_image, inside.files)) for inside in walk(folder))


def _hint_to_move(listing: Listing) -> str:
    """The remedy if class folders are directly under the root, as other programs expect them; otherwise empty."""
    unused = listing.remarks.get("unused-folder", [])
    if not unused or (listing.root / "labeled").exists():
        return ""
    return f"; move the class folders into it, if '{unused[0]}' is one"


def _visible_folders(folder: Path) -> list[str]:
    """The sorted names of the folders in `folder` that are not hidden."""
    return [name for name in names_in(folder) if _is_visible_folder(folder, name)]


def class_folders(folder: Path) -> list[str]:
    """The sorted names of the class folders in `folder`, in the order of the labels; fewer than two are an error."""
    if not folder.is_dir():
        raise NPMatchError(f"{folder}: no such folder; it must hold one folder of images for each class")
    classes = _visible_folders(folder)
    if not classes:
        raise NPMatchError(f"{folder}: no class folder in it; put the images of each class into a folder of its own")
    if len(classes) < 2:
        raise NPMatchError(f"{folder}: '{classes[0]}' is the only class folder; add at least one more class")
    return classes


def _list_classes(listing: Listing, folder: Path, part: Part) -> None:
    """Adds the images of every class folder in `folder` to a listing."""
    try:
        names = names_in(folder)
    except NPMatchError as error:
        if str(error) not in listing.faults:  # the classes are read from the same folder
            listing.faults.append(str(error))
        return
    for name in names:
        if not _is_visible_folder(folder, name):
            kind = "hidden" if name.startswith(".") else "no-class-folder"
            listing.remark(kind, f"{folder.name}/{name}")
        elif name not in listing.classes and part == "test":
            listing.faults.append(f"{folder / name}: a class that has no training folder; rename or remove it")
        elif _list_images(listing, folder / name, part, name) == 0:
            if part == "labeled":
                fault = "no image in this class folder; add some or remove the folder"
                listing.faults.append(f"{folder / name}: {fault}")
            else:
                listing.remark("empty-folder", f"{folder.name}/{name}")


def _list_images(
    listing: Listing, folder: Path, part: Part, label: str = "", left_out: tuple[str, ...] = ()
) -> int | None:
    """Adds the images in and below `folder` to a listing; returns their number, None if the folder cannot be read.

    Folders of the names `left_out` directly in `folder` are not entered.
    """
    count = 0
    for where, folders, files, problem in walk(folder):
        inside = os.path.relpath(where, folder)
        if inside.split(os.sep)[0] in left_out:
            continue
        base = os.path.relpath(where, listing.root).replace(os.sep, "/")
        if problem and where == str(folder):
            listing.faults.append(unreadable(folder, problem))
            return None
        if problem:
            listing.remark("unreadable-folder", base)
        for name in folders:
            if os.path.islink(os.path.join(where, name)):  # not followed, because links may form a cycle
                listing.remark("linked-folder", f"{base}/{name}")
            elif name.startswith("."):
                listing.remark("hidden", f"{base}/{name}")
        for name in files:
            if is_image(name):
                listing.files.append(ListedFile(f"{base}/{name}".removeprefix("./"), part, label))
                count += 1
                if label and where != str(folder):
                    listing.remark("nested", f"{base}/{name}")
            elif name not in (LABEL_TABLE, LABEL_LOCK, AUDITED):
                listing.remark(_why_unused(name), f"{base}/{name}")
    return count


def _why_unused(name: str) -> str:
    """The kind of finding for a file that is not used."""
    if name.startswith("."):
        return "hidden"
    return "unread-format" if is_unread(name) else "other-file"


def walk_pictures(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """`folder` and every folder below it with the names of its pictures, in a fixed order, without hidden ones.

    Pictures in formats that are not read, links to folders elsewhere and folders that cannot be read are among them, as
    they would be missed otherwise; links to folders below `folder` are not, as the walk reaches their images anyway.
    """
    top = os.path.realpath(folder)
    for where, folders, files, problem in walk(folder):
        if problem:
            yield os.path.split(where)[0], [os.path.split(where)[1]]
            continue
        links = [name for name in folders if not name.startswith(".") and os.path.islink(os.path.join(where, name))]
        targets = {name: os.path.realpath(os.path.join(where, name)) for name in links}
        elsewhere = [name for name, target in targets.items() if os.path.commonpath([target, top]) != top]
        yield where, sorted([name for name in files if is_image(name) or is_unread(name)] + elsewhere)


def _is_visible_folder(folder: Path, name: str) -> bool:
    return not name.startswith(".") and os.path.isdir(os.path.join(folder, name))


def is_image(name: str) -> bool:
    """Whether `name` is a file name of an image that is not hidden."""
    return _has_extension(name, IMAGE_EXTENSIONS)


def is_unread(name: str) -> bool:
    """Whether `name` is a file name of a picture that is not hidden and has a format that is not read."""
    return _has_extension(name, UNREAD_EXTENSIONS)


def is_raw(name: str) -> bool:
    """Whether `name` is a file name of a camera's raw picture, in which a TIFF reader finds only the thumbnail."""
    return _has_extension(name, RAW_EXTENSIONS)


def _has_extension(name: str, extensions: tuple[str, ...]) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in extensions
