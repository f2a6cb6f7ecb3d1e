"""Listings: the image files of a folder or a CSV, found without opening them, and the problems of their layout."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from npmatch.data.images import FileImages
from npmatch.errors import NPMatchError
from npmatch.types import Dataset, ImageSet

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Part = Literal["labeled", "unlabeled", "test"]


class ListedFile(NamedTuple):
    """One image file of a data set."""

    name: str  # relative to the listing's root, with "/", so that equal folders in two places give equal data sets
    part: Part
    label: str = ""  # empty if unlabelled


@dataclass
class Listing:
    """All image files of a data set: the training files in the order of the training set, then the test files."""

    root: Path
    classes: list[str] = field(default_factory=list)  # in the order of the labels
    files: list[ListedFile] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # problems that make training impossible, one line each
    missing: dict[str, str] = field(default_factory=dict)  # name of a file that does not exist → error message
    remarks: dict[str, list[str]] = field(default_factory=dict)  # a kind of findings.KINDS → names of files or folders
    table: bytes | None = None  # the folder's table of labels as it was read; None without one

    def path(self, file: ListedFile) -> str:
        """The path of a listed file."""
        return os.path.join(self.root, file.name)

    def count(self, part: Part) -> Counter[str]:
        """Number of images of `part` with each label."""
        return Counter(file.label for file in self.files if file.part == part)

    def remark(self, kind: str, name: str) -> None:
        """Adds a file or folder to the remarks of one kind."""
        self.remarks.setdefault(kind, []).append(name)

    def dataset(self, name: str, size: int, missing_ok: bool = False) -> ListedDataset:
        """The data set, with images decoded on access; faults are errors, as are missing files unless `missing_ok`."""
        faults = self.faults + ([] if missing_ok else list(self.missing.values()))
        if faults:
            raise NPMatchError(faults[0])
        train = self._images([file for file in self.files if file.part != "test"], size)
        test = self._images([file for file in self.files if file.part == "test"], size)
        return ListedDataset(
            name, tuple(self.classes), train, test if len(test) else None, IMAGENET_MEAN, IMAGENET_STD, listing=self
        )

    def _images(self, files: list[ListedFile], size: int) -> ImageSet:
        index = {"": -1} | {name: label for label, name in enumerate(self.classes)}
        labels = torch.tensor([index[file.label] for file in files], dtype=torch.int64)
        return ImageSet(FileImages([self.path(file) for file in files], size), labels, [file.name for file in files])


@dataclass
class ListedDataset(Dataset):
    """A data set of files with their listing, so that later checks need not walk the folder again."""

    listing: Listing = field(default_factory=lambda: Listing(Path()))
