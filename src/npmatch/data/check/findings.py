"""The kinds of findings of a check, and the report with all findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


class Kind(NamedTuple):
    """A kind of finding: how serious it is, and what it means."""

    level: Literal["left out", "warning", "note"]  # training leaves the file out; worth a look; good to know
    meaning: str


KINDS = {
    "missing": Kind("left out", "no such file"),
    "unreadable": Kind("left out", "cannot be opened"),
    "empty-file": Kind("left out", "zero bytes long"),
    "not-an-image": Kind("left out", "not an image, whatever its name says"),
    "truncated": Kind("left out", "damaged or cut short"),
    "huge": Kind("left out", "more pixels than allowed"),
    "many-scans": Kind("left out", "a JPEG that takes minutes to decode"),
    "float-pixels": Kind("left out", "pixels without a known range"),
    "leak": Kind("left out", "test images among the training images"),
    "two-labels": Kind("left out", "the same file under two labels"),
    "duplicate": Kind("warning", "the same file more than once"),
    "near-leak": Kind("warning", "training images that look like a test image"),
    "near-two-labels": Kind("warning", "pictures that look the same, under two labels"),
    "near-duplicate": Kind("warning", "pictures that look the same"),
    "similar-classes": Kind(
        "warning", "class names that differ only in case, blanks or encoding: one class or several?"
    ),
    "few-labels": Kind("warning", "classes with fewer than 4 labelled images"),
    "imbalance": Kind("warning", "classes of very different size"),
    "no-unlabeled": Kind("warning", "no unlabelled images: nothing for semi-supervised learning to use"),
    "no-test": Kind("note", "no test images: the error will not be known unless labels are held out"),
    "no-class-folder": Kind("warning", "not in a class folder: not used"),
    "unused-folder": Kind("warning", "images beside the folders labeled, unlabeled and test: not used"),
    "set-aside": Kind("note", "answered in labels.csv as none of these or broken: not used"),
    "empty-folder": Kind("warning", "no image in this folder"),
    "linked-folder": Kind("warning", "a link to a folder: not followed"),
    "unread-format": Kind("warning", "pictures in a format that is not read: not used; save them as JPEG or PNG"),
    "unreadable-folder": Kind("warning", "a folder that cannot be read: not used; change its permissions"),
    "wrong-extension": Kind("warning", "named like another format; read by its content"),
    "animated": Kind("warning", "several frames; the first is used"),
    "tiny": Kind("warning", "less than a quarter as large as the others: little to see"),
    "strip": Kind("warning", "long and narrow; only the middle square is seen"),
    "odd-name": Kind("note", "blanks, quotes or control characters in the name, or one that scripts stumble over"),
    "nested": Kind("note", "in a folder inside a class folder; used as that class"),
    "other-file": Kind("note", "not an image by its name: not used"),
    "hidden": Kind("note", "hidden: not used"),
    "exif-rotated": Kind("note", "turned upright as its EXIF data says"),
    "transparent": Kind("note", "transparency is laid on white"),
    "palette": Kind("note", "a palette; converted to RGB"),
    "cmyk": Kind("note", "CMYK; converted to RGB"),
    "16-bit": Kind("note", "16 bits; scaled to 8"),
    "greyscale": Kind("note", "greyscale; converted to RGB"),
}


class Quarantined(NamedTuple):
    """A file that training leaves out, and the reason."""

    path: str
    kind: str
    detail: str


@dataclass
class Finding:
    """All files or classes with findings of one kind."""

    kind: str
    names: list[str]  # of files or classes
    groups: list[list[str]] = field(default_factory=list)  # of equal pictures, or of similar class names


@dataclass
class DataReport:
    """Statistics of a data set and everything that is wrong with it."""

    data: str
    images: dict[str, int]  # part → number of files
    labels: dict[str, dict[str, int]]  # class → part ("labeled" or "test") → number of usable images
    sizes: dict[str, list[int]]  # "width" or "height" → smallest, median and largest value in pixels
    modes: dict[str, int]  # Pillow's mode → number of images
    formats: dict[str, int]  # file format → number of images
    findings: list[Finding]
    quarantine: list[Quarantined]
    faults: list[str]  # reasons why training would fail

    def asdict(self) -> dict[str, Any]:
        """The report as JSON values."""
        findings = [{**vars(finding), **KINDS[finding.kind]._asdict()} for finding in self.findings]
        return {**vars(self), "findings": findings, "quarantine": [file._asdict() for file in self.quarantine]}

    def names(self, kind: str) -> list[str]:
        """The names of all files or classes with findings of one kind."""
        return [name for finding in self.findings if finding.kind == kind for name in finding.names]
