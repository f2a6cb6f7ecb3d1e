"""The same picture more than once: under two labels, in training and test, or just twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from npmatch.data.listing import ListedFile
from npmatch.data.similarity import group_alike


class Group(NamedTuple):
    """Files that hold the same picture."""

    kind: str  # leak, two-labels or duplicate; with near- before it where the files differ and the pictures do not
    files: list[ListedFile]

    @property
    def left_out(self) -> list[ListedFile]:
        """Those of them that must not be trained on."""
        if self.kind == "leak":
            return [file for file in self.files if file.part != "test"]
        if self.kind == "two-labels":  # nobody here knows which label is right
            return [file for file in self.files if file.part == "labeled"]
        return []


def find_copies(files: Sequence[ListedFile], digests: Sequence[bytes]) -> Iterator[Group]:
    """Files whose content is the same, byte for byte."""
    by_content: dict[bytes, list[ListedFile]] = {}
    for file, digest in zip(files, digests, strict=True):
        if digest:
            by_content.setdefault(digest, []).append(file)
    for same in by_content.values():
        if len(same) > 1:
            yield from (Group(kind, same) for kind in _kinds(same))


def find_look_alikes(
    files: Sequence[ListedFile], digests: Sequence[bytes], thumbnails: npt.NDArray[np.uint8]
) -> Iterator[Group]:
    """Files whose pictures look the same although the content differs; of equal files, the first of each part."""
    digest_of = dict(zip(files, digests, strict=True))
    for members in group_alike(thumbnails):
        different: dict[tuple[object, ...], ListedFile] = {}
        for file in (files[index] for index in members):
            different.setdefault((digest_of[file], file.part, file.label), file)
        if len({digest_of[file] for file in different.values()}) > 1:
            alike = list(different.values())
            yield from (Group(f"near-{kind}", alike) for kind in _kinds(alike))


def _kinds(same: list[ListedFile]) -> Iterator[str]:
    """What is wrong with having these files, the worst first."""
    parts = {file.part for file in same}
    leak = "test" in parts and len(parts) > 1
    two_labels = len({file.label for file in same if file.label}) > 1
    if leak:
        yield "leak"
    if two_labels:
        yield "two-labels"
    if not leak and not two_labels:
        yield "duplicate"
