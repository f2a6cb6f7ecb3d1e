"""The check of a user's images before training: every file is opened and decoded.

report = check_data(list_data(Path("photos")))
report.faults       # reasons why training would fail
report.quarantine   # files that training leaves out, each with its reason
report.findings     # everything that was found, by kind
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npmatch.data.check.duplicates import SIDE, find_copies, find_look_alikes
from npmatch.data.check.findings import KINDS, DataReport, Finding, Quarantined
from npmatch.data.check.inspection import Inspection, inspect_files
from npmatch.data.loading import workers_or_default
from npmatch.data.sources.listing import ListedFile, Listing

MIN_LABELS = 4  # per class: the fewest that are usual in the literature
MAX_SHRINKAGE = 4  # ratio of the usual shorter side to that of a picture
MAX_IMBALANCE = 5  # ratio of the numbers of labels in the largest and the smallest class
PLAIN_NAME = re.compile(r"(?!-)[\w.,+=@()\[\]#&~%-]+")


def check_data(
    listing: Listing,
    name: str = "",
    workers: int | None = None,
    needed: int = 1,
    advance: Callable[[int], None] = lambda n: None,
    pixels: Tensor | None = None,
) -> DataReport:
    """Opens every file of a listing, decodes all of it, and reports what is wrong.

    A class with fewer than `needed` usable labelled images is a fault. `name` is what the report calls the data.
    `workers` is the number of decoding processes; None means one per core, up to 16. `advance` is called with the
    number of files checked since the last call. `pixels` (uint8, N 3 S S) receives the images as training decodes them,
    one row for each file of the listing; the row of an unusable file is left as it is.
    """
    files = listing.files
    paths = [listing.path(file) for file in files]
    thumbnails = np.zeros((len(files), SIDE, SIDE), np.uint8)
    inspected: list[Inspection] = []
    size = None if pixels is None else pixels.shape[-1]
    for chunk in inspect_files(paths, workers_or_default(workers), size):
        for one in chunk:
            if one.thumbnail is not None:
                thumbnails[len(inspected)] = one.thumbnail
            if pixels is not None and one.pixels is not None:
                pixels[len(inspected)] = torch.from_numpy(one.pixels)
            # One array for all takes a quarter of the memory.
            inspected.append(one._replace(thumbnail=None, pixels=None))
        advance(len(chunk))

    findings = {kind: Finding(kind, list(names)) for kind, names in listing.remarks.items()}
    quarantine = _quarantine_broken(files, inspected, findings)
    readable = [index for index, one in enumerate(inspected) if not one.problem]
    readable_files, pictures = [files[index] for index in readable], [inspected[index] for index in readable]
    digests = [picture.digest for picture in pictures]
    _quarantine_duplicates(readable_files, digests, thumbnails[readable], findings, quarantine)
    if tiny := list(_tiny(readable_files, pictures)):
        findings["tiny"] = Finding("tiny", tiny)
    usable = [file for file in files if file.name not in quarantine]
    if similar := similar_names(listing.classes):
        findings["similar-classes"] = Finding("similar-classes", [name for names in similar for name in names], similar)
    for kind, names in _check_classes(listing, usable):
        findings[kind] = Finding(kind, names)
    sides = {"width": [picture.width for picture in pictures], "height": [picture.height for picture in pictures]}
    return DataReport(
        data=name or str(listing.root),
        images={part: sum(file.part == part for file in files) for part in ("labeled", "unlabeled", "test")},
        labels=_count_labels(listing, usable),
        sizes={side: [min(values), int(np.median(values)), max(values)] for side, values in sides.items() if values},
        modes=dict(Counter(picture.mode for picture in pictures).most_common()),
        formats=dict(Counter(picture.format for picture in pictures).most_common()),
        findings=[findings[kind] for kind in KINDS if kind in findings],
        quarantine=list(quarantine.values()),
        faults=listing.faults + _classes_without_labels(listing, usable, needed),
    )


def _quarantine_broken(
    files: Sequence[ListedFile], inspected: Sequence[Inspection], findings: dict[str, Finding]
) -> dict[str, Quarantined]:
    """The files that cannot be used; adds their problems, and the notes on usable files, to `findings`."""
    quarantine = {}
    for file, one in zip(files, inspected, strict=True):
        if one.problem:
            quarantine[file.name] = Quarantined(file.name, one.problem, one.detail)
        odd = ("odd-name",) if is_odd_name(file.name) else ()
        for kind in (*((one.problem,) if one.problem else one.notes), *odd):
            findings.setdefault(kind, Finding(kind, [])).names.append(file.name)
    return quarantine


def _quarantine_duplicates(
    files: list[ListedFile],
    digests: list[bytes],
    thumbnails: np.ndarray[Any, np.dtype[np.uint8]],
    findings: dict[str, Finding],
    quarantine: dict[str, Quarantined],
) -> None:
    """Adds pictures that occur more than once to `findings`, and those that training must leave out to `quarantine`."""
    for group in (*find_copies(files, digests), *find_look_alikes(files, digests, thumbnails)):
        finding = findings.setdefault(group.kind, Finding(group.kind, []))
        finding.groups.append([file.name for file in group.files])
        finding.names += finding.groups[-1]
        for file in group.left_out:
            others = ", ".join(other.name for other in group.files if other is not file)
            quarantine.setdefault(file.name, Quarantined(file.name, group.kind, f"the same as {others}"))


def _tiny(files: Sequence[ListedFile], pictures: Sequence[Inspection]) -> Iterator[str]:
    """The names of pictures whose shorter side is below a fraction of what is usual among them."""
    sides = [min(picture.width, picture.height) for picture in pictures]
    usual = float(np.median(sides)) if sides else 0.0
    return (file.name for file, side in zip(files, sides, strict=True) if MAX_SHRINKAGE * side < usual)


def _count_labels(listing: Listing, usable: list[ListedFile]) -> dict[str, dict[str, int]]:
    """For each class, the number of usable labelled images and test images."""
    counts = Counter((file.part, file.label) for file in usable)
    return {name: {part: counts[part, name] for part in ("labeled", "test")} for name in listing.classes}


def _check_classes(listing: Listing, usable: list[ListedFile]) -> Iterator[tuple[str, list[str]]]:
    """Kinds of findings about the number of images per class and part, with the names of the classes."""
    labels = {name: counts["labeled"] for name, counts in _count_labels(listing, usable).items()}
    if few := [name for name, count in labels.items() if count < MIN_LABELS]:
        yield "few-labels", few
    if labels and max(labels.values()) > MAX_IMBALANCE * max(1, min(labels.values())):
        smallest, largest = (choose(labels, key=labels.__getitem__) for choose in (min, max))
        yield "imbalance", [f"{name} ({labels[name]})" for name in (smallest, largest)]
    parts = {file.part for file in usable}
    if "unlabeled" not in parts:
        yield "no-unlabeled", []
    if "test" not in parts:
        yield "no-test", []


def _classes_without_labels(listing: Listing, usable: list[ListedFile], needed: int) -> list[str]:
    """A fault for each class with fewer than `needed` usable labelled images."""
    listed = listing.count("labeled")  # an empty class is a fault of the listing already
    return [
        f"class '{name}': {counts['labeled']} labelled image(s) that can be used, but {needed} needed; add some"
        for name, counts in _count_labels(listing, usable).items()
        if counts["labeled"] < needed and listed[name]
    ]


def similar_names(classes: Sequence[str]) -> list[list[str]]:
    """Groups of class names that look alike: `Cat`, `cat` and `cat `, or é as one character and as two."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def is_odd_name(name: str) -> bool:
    """Whether a file name may cause trouble in shells, tables or on other systems."""
    last = name.rpartition("/")[2]
    return not PLAIN_NAME.fullmatch(last) or unicodedata.normalize("NFC", last) != last
