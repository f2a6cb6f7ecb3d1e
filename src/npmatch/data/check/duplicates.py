"""Pictures that occur more than once: under two labels, in training and test, or just twice.

Equal files are found by a hash of their content. Pictures that look the same are found by their 16×16 thumbnails: pairs
whose 128-bit gradient hashes differ in fewer than eight bits, and whose correlation is above 0.99.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from npmatch.data.sources.listing import ListedFile

SIDE = 16  # of a thumbnail, in pixels
# Each hash is cut into 8 bands of 16 bits. Hashes that differ in fewer than 8 bits agree in at least one band, so that
# only hashes with an equal band need to be compared.
BANDS = 8
MARGIN = 4  # grey levels; a smaller difference is no gradient, but may be compression noise in a flat area
ALIKE = 0.99  # correlation of two thumbnails; copies saved again have 0.996, two different digits at most 0.99
FLAT = 2.0  # standard deviation of the grey levels below which a picture has nothing to compare
BLOCK = 1024  # number of hashes compared with all others at a time, to limit memory

Pairs = npt.NDArray[np.int64]  # n 2


def group_alike(thumbnails: npt.NDArray[np.uint8]) -> list[list[int]]:
    """Groups of two or more pictures that look the same, as sorted positions in `thumbnails`, N SIDE SIDE."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(thumbnails)
    structured = np.flatnonzero(thumbnails.reshape(n, -1).std(1) > FLAT) if n else np.arange(0)
    if len(structured) < 2:
        return []
    pairs = structured[np.concatenate([*_candidates(_hashes(thumbnails[structured]))])]
    pairs = pairs[_correlation(thumbnails, pairs) > ALIKE]
    edges = coo_array((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, group = connected_components(edges, directed=False)
    members: dict[int, list[int]] = {}
    for index in np.unique(pairs).tolist():
        members.setdefault(int(group[index]), []).append(index)
    return list(members.values())


def _hashes(thumbnails: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """N SIDE SIDE → N BANDS: bits that say where brightness increases to the right and downwards, on an 8×8 grid."""
    n, half = len(thumbnails), SIDE // 2
    grey = thumbnails.reshape(n, half, 2, half, 2).mean((2, 4))
    right, down = (np.roll(grey, -1, axis) - grey > MARGIN for axis in (2, 1))
    bits = np.concatenate([right.reshape(n, -1), down.reshape(n, -1)], axis=1)
    # Each band has bits from the whole picture, because neighbouring bits are often equal and tell little.
    bands = bits.reshape(n, 16, BANDS).transpose(0, 2, 1)
    return np.packbits(bands, axis=2).view(np.uint16).reshape(n, BANDS)


def _candidates(hashes: npt.NDArray[np.uint16]) -> Iterator[Pairs]:
    """Pairs of positions whose hashes differ in fewer than BANDS bits; of equal hashes, each with the first of them."""
    unique, first, inverse = np.unique(hashes, axis=0, return_index=True, return_inverse=True)
    first_equal = first[inverse.reshape(-1)]
    repeated = np.flatnonzero(first_equal != np.arange(len(hashes)))
    yield np.stack([first_equal[repeated], repeated], axis=1)
    for band in range(BANDS):
        order = np.argsort(unique[:, band], kind="stable")
        bounds = np.flatnonzero(np.diff(unique[order, band], prepend=-1, append=-1).astype(bool))
        for start, stop in pairwise(bounds.tolist()):
            if stop - start > 1:
                for pairs in _close(unique, order[start:stop]):
                    yield first[pairs]


def _close(unique: npt.NDArray[np.uint16], members: npt.NDArray[np.int64]) -> Iterator[Pairs]:
    """Pairs of `members` whose hashes in `unique` differ in fewer than BANDS bits."""
    for start in range(0, len(members), BLOCK):
        rows, columns = members[start : start + BLOCK], members[start:]
        distance = np.zeros((len(rows), len(columns)), np.uint8)
        for band in range(BANDS):
            distance += np.bitwise_count(unique[rows, band, None] ^ unique[None, columns, band])
        i, j = np.nonzero(np.triu(distance < BANDS, 1))
        yield np.stack([rows[i], columns[j]], axis=1)


def _correlation(thumbnails: npt.NDArray[np.uint8], pairs: Pairs) -> npt.NDArray[np.float32]:
    """Correlation of the two thumbnails of each pair."""
    result = np.empty(len(pairs), np.float32)
    for start in range(0, len(pairs), 8 * BLOCK):
        part = slice(start, start + 8 * BLOCK)
        left, right = (_standardised(thumbnails[pairs[part, side]]) for side in (0, 1))
        result[part] = (left * right).mean(1)
    return result


def _standardised(thumbnails: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """N SIDE SIDE → N SIDE², each row with mean 0 and standard deviation 1."""
    flat = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    flat /= flat.std(1, keepdims=True)
    return flat


class Group(NamedTuple):
    """Files that contain the same picture."""

    kind: str  # leak, two-labels or duplicate; prefixed with near- if the files differ and only look the same
    files: list[ListedFile]

    @property
    def left_out(self) -> list[ListedFile]:
        """The files that training must leave out."""
        if self.kind == "leak":
            return [file for file in self.files if file.part != "test"]
        if self.kind == "two-labels":  # it is unknown which label is right
            return [file for file in self.files if file.part == "labeled"]
        return []


def find_copies(files: Sequence[ListedFile], digests: Sequence[bytes]) -> Iterator[Group]:
    """Groups of files with equal content, byte for byte."""
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
    """Groups of files that look the same but differ in content; of equal files, the first of each part and label."""
    digest_of = dict(zip(files, digests, strict=True))
    for members in group_alike(thumbnails):
        different: dict[tuple[object, ...], ListedFile] = {}
        for file in (files[index] for index in members):
            different.setdefault((digest_of[file], file.part, file.label), file)
        if len({digest_of[file] for file in different.values()}) > 1:
            alike = list(different.values())
            yield from (Group(f"near-{kind}", alike) for kind in _kinds(alike))


def _kinds(same: list[ListedFile]) -> Iterator[str]:
    """The kinds of problem that a group of equal pictures has, the worst first."""
    parts = {file.part for file in same}
    leak = "test" in parts and len(parts) > 1
    two_labels = len({file.label for file in same if file.label}) > 1
    if leak:
        yield "leak"
    if two_labels:
        yield "two-labels"
    if not leak and not two_labels:
        yield "duplicate"
