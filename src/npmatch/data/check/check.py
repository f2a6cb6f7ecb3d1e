"""What is wrong with a folder of images, found before hours are spent on it.

report = check_data(list_data(Path("photos")))
report.faults       # why training would fail
report.quarantine   # files that training leaves out, each with its reason
report.findings     # everything else worth a look
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from npmatch.data.check.duplicates import SIDE, find_copies, find_look_alikes
from npmatch.data.check.findings import KINDS, DataReport, Finding, Quarantined
from npmatch.data.check.inspection import Inspection, inspect_files
from npmatch.data.loading import default_workers
from npmatch.data.sources.listing import ListedFile, Listing

WANTED_LABELS = 4  # per class: the fewest the literature works with
IMBALANCE = 5  # times as many labels in the largest class as in the smallest
PLAIN_NAME = re.compile(r"(?!-)[\w.,+=@()\[\]#&~%-]+")


def check_data(
    listing: Listing,
    name: str = "",
    workers: int | None = None,
    needed: int = 1,
    advance: Callable[[int], None] = lambda n: None,
) -> DataReport:
    """Opens every file and decodes it whole; `needed` labelled images of each class, or training would fail.

    `workers` are the processes that do so; None: as many as there are cores, up to 16.
    """
    files = listing.files
    paths = [listing.path(file) for file in files]
    thumbnails = np.zeros((len(files), SIDE, SIDE), np.uint8)
    inspected: list[Inspection] = []
    for chunk in inspect_files(paths, default_workers() if workers is None else workers):
        for one in chunk:
            if one.thumbnail is not None:
                thumbnails[len(inspected)] = one.thumbnail
            inspected.append(one._replace(thumbnail=None))  # a row of one array takes a quarter of the memory
        advance(len(chunk))

    findings = {kind: Finding(kind, list(names)) for kind, names in listing.remarks.items()}
    quarantine = _broken(files, inspected, findings)
    whole = [index for index, one in enumerate(inspected) if not one.problem]
    seen = [inspected[index] for index in whole]
    digests = [one.digest for one in seen]
    _duplicates([files[index] for index in whole], digests, thumbnails[whole], findings, quarantine)
    usable = [file for file in files if file.name not in quarantine]
    for kind, names in _about_classes(listing, usable):
        findings[kind] = Finding(kind, names)
    sides = {"width": [one.width for one in seen], "height": [one.height for one in seen]}
    return DataReport(
        data=name or str(listing.root),
        images={part: sum(file.part == part for file in files) for part in ("labeled", "unlabeled", "test")},
        labels=_count_labels(listing, usable),
        sizes={side: [min(values), int(np.median(values)), max(values)] for side, values in sides.items() if values},
        modes=dict(Counter(one.mode for one in seen).most_common()),
        formats=dict(Counter(one.format for one in seen).most_common()),
        findings=[findings[kind] for kind in KINDS if kind in findings],
        quarantine=list(quarantine.values()),
        faults=listing.faults + _lacking(listing, usable, needed),
    )


def _broken(
    files: Sequence[ListedFile], inspected: Sequence[Inspection], findings: dict[str, Finding]
) -> dict[str, Quarantined]:
    """Files that cannot be used; what is merely unusual goes to the findings too."""
    quarantine = {}
    for file, one in zip(files, inspected, strict=True):
        if one.problem:
            quarantine[file.name] = Quarantined(file.name, one.problem, one.detail)
        odd = ("odd-name",) if is_odd_name(file.name) else ()
        for kind in (*((one.problem,) if one.problem else one.notes), *odd):
            findings.setdefault(kind, Finding(kind, [])).names.append(file.name)
    return quarantine


def _duplicates(
    files: list[ListedFile],
    digests: list[bytes],
    thumbnails: np.ndarray[Any, np.dtype[np.uint8]],
    findings: dict[str, Finding],
    quarantine: dict[str, Quarantined],
) -> None:
    """Pictures that are there more than once; training copies of test images are left out."""
    for group in (*find_copies(files, digests), *find_look_alikes(files, digests, thumbnails)):
        found = findings.setdefault(group.kind, Finding(group.kind, []))
        found.groups.append([file.name for file in group.files])
        found.names += found.groups[-1]
        for file in group.left_out:
            others = ", ".join(other.name for other in group.files if other is not file)
            quarantine.setdefault(file.name, Quarantined(file.name, group.kind, f"the same as {others}"))


def _count_labels(listing: Listing, usable: list[ListedFile]) -> dict[str, dict[str, int]]:
    counts = Counter((file.part, file.label) for file in usable)
    return {name: {part: counts[part, name] for part in ("labeled", "test")} for name in listing.classes}


def _about_classes(listing: Listing, usable: list[ListedFile]) -> Iterator[tuple[str, list[str]]]:
    """What the numbers of labels say."""
    labels = {name: counts["labeled"] for name, counts in _count_labels(listing, usable).items()}
    if few := [name for name, count in labels.items() if count < WANTED_LABELS]:
        yield "few-labels", few
    if labels and max(labels.values()) > IMBALANCE * max(1, min(labels.values())):
        smallest, largest = (choose(labels, key=labels.__getitem__) for choose in (min, max))
        yield "imbalance", [f"{name} ({labels[name]})" for name in (smallest, largest)]
    parts = {file.part for file in usable}
    if "unlabeled" not in parts:
        yield "no-unlabeled", []
    if "test" not in parts:
        yield "no-test", []


def _lacking(listing: Listing, usable: list[ListedFile], needed: int) -> list[str]:
    """Classes that cannot be trained, a line each."""
    return [
        f"class '{name}': {counts['labeled']} labelled image(s) that can be used, but {needed} needed; add some"
        for name, counts in _count_labels(listing, usable).items()
        if counts["labeled"] < needed
        and any(file.part == "labeled" and file.label == name for file in listing.files)  # else said already
    ]


def is_odd_name(name: str) -> bool:
    """Whether shells, tables or other systems may stumble over a file's name."""
    last = name.rpartition("/")[2]
    return not PLAIN_NAME.fullmatch(last) or unicodedata.normalize("NFC", last) != last
