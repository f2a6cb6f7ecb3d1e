"""Which files a data set consists of, before any of them is opened, and what is wrong with the way they lie there."""

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
    """One image of a data set."""

    name: str  # relative to the listing's root and with "/", so that equal folders in two places are equal data sets
    part: Part
    label: str = ""  # empty where unlabelled


@dataclass
class Listing:
    """All files of a data set, labelled and unlabelled ones in the order they are trained in, then the test's."""

    root: Path
    classes: list[str] = field(default_factory=list)  # their order is the order of the labels
    files: list[ListedFile] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # why nothing can be trained on it, a line each
    missing: dict[str, str] = field(default_factory=dict)  # name → where it is listed, in words
    remarks: dict[str, list[str]] = field(default_factory=dict)  # a kind of findings.KINDS → what it is true of

    def path(self, file: ListedFile) -> str:
        """Where it is."""
        return os.path.join(self.root, file.name)

    def count(self, part: Part) -> Counter[str]:
        """How many images of a part have each label."""
        return Counter(file.label for file in self.files if file.part == part)

    def remark(self, kind: str, name: str) -> None:
        """Remembers what somebody should look at."""
        self.remarks.setdefault(kind, []).append(name)

    def dataset(self, name: str, size: int, missing_ok: bool = False) -> ListedDataset:
        """The images, decoded when they are asked for; fails with the first fault."""
        faults = self.faults + ([] if missing_ok else list(self.missing.values()))
        if faults:
            raise NPMatchError(faults[0])
        train = self._images([file for file in self.files if file.part != "test"], size)
        test = self._images([file for file in self.files if file.part == "test"], size)
        return ListedDataset(
            name, tuple(self.classes), train, test if len(test) else None, IMAGENET_MEAN, IMAGENET_STD, self
        )

    def _images(self, files: list[ListedFile], size: int) -> ImageSet:
        number = {"": -1} | {name: label for label, name in enumerate(self.classes)}
        labels = torch.tensor([number[file.label] for file in files], dtype=torch.int64)
        return ImageSet(FileImages([self.path(file) for file in files], size), labels, [file.name for file in files])


@dataclass
class ListedDataset(Dataset):
    """A data set of files that remembers their listing, so that nobody has to walk the folder again."""

    listing: Listing = field(default_factory=lambda: Listing(Path()))
