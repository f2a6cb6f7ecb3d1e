"""Which pictures look the same: scaled, saved again or a little brighter, told by their small grey versions.

Gradients of the small version make a hash of 128 bits; hashes that differ in a few bits are candidates, and the small
versions themselves decide. Candidates are found without comparing all with all: two hashes that differ in fewer bits
than there are bands agree in at least one band.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

SIDE = 16  # of the small version
BANDS = 8  # of 16 bits; hashes that differ in up to seven bits are found
MARGIN = 4  # grey levels that make a gradient: below it, what compression leaves in a flat area would be one
ALIKE = 0.99  # correlation of two small versions. Copies saved again have 0.996, two different digits 0.99 at most
FLAT = 2.0  # deviation of the grey levels below which a picture shows nothing to compare
BLOCK = 1024  # hashes compared with the others of their group at a time

Pairs = npt.NDArray[np.int64]  # n 2


def group_alike(thumbnails: npt.NDArray[np.uint8]) -> list[list[int]]:
    """Groups of two or more pictures that look the same, of N SIDE SIDE; in each, the members in order."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(thumbnails)
    shown = np.flatnonzero(thumbnails.reshape(n, -1).std(1) > FLAT) if n else np.arange(0)
    if len(shown) < 2:
        return []
    pairs = shown[np.concatenate([*_candidates(_hashes(thumbnails[shown]))])]
    pairs = pairs[_correlation(thumbnails, pairs) > ALIKE]
    edges = coo_array((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, group = connected_components(edges, directed=False)
    members: dict[int, list[int]] = {}
    for index in np.unique(pairs).tolist():
        members.setdefault(int(group[index]), []).append(index)
    return list(members.values())


def _hashes(thumbnails: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """N SIDE SIDE → N BANDS: where it grows brighter to the right, and downwards, on an 8×8 grid."""
    n, half = len(thumbnails), SIDE // 2
    grey = thumbnails.reshape(n, half, 2, half, 2).mean((2, 4))
    right, down = (np.roll(grey, -1, axis) - grey > MARGIN for axis in (2, 1))
    bits = np.concatenate([right.reshape(n, -1), down.reshape(n, -1)], axis=1)
    # Each band takes its bits from all over the picture: neighbouring bits are often equal and tell little.
    bands = bits.reshape(n, 16, BANDS).transpose(0, 2, 1)
    return np.packbits(bands, axis=2).view(np.uint16).reshape(n, BANDS)


def _candidates(hashes: npt.NDArray[np.uint16]) -> Iterator[Pairs]:
    """Pairs of pictures whose hashes differ in fewer than BANDS bits."""
    unique, first, inverse = np.unique(hashes, axis=0, return_index=True, return_inverse=True)
    copies = first[inverse.reshape(-1)]
    again = np.flatnonzero(copies != np.arange(len(hashes)))
    yield np.stack([copies[again], again], axis=1)
    for band in range(BANDS):
        order = np.argsort(unique[:, band], kind="stable")
        bounds = np.flatnonzero(np.diff(unique[order, band], prepend=-1, append=-1).astype(bool))
        for start, stop in pairwise(bounds.tolist()):
            if stop - start > 1:
                for pairs in _close(unique, order[start:stop]):
                    yield first[pairs]


def _close(unique: npt.NDArray[np.uint16], members: npt.NDArray[np.int64]) -> Iterator[Pairs]:
    """Pairs among `members` that differ in fewer than BANDS bits."""
    for start in range(0, len(members), BLOCK):
        rows, columns = members[start : start + BLOCK], members[start:]
        distance = np.zeros((len(rows), len(columns)), np.uint8)
        for band in range(BANDS):
            distance += np.bitwise_count(unique[rows, band, None] ^ unique[None, columns, band])
        i, j = np.nonzero(np.triu(distance < BANDS, 1))
        yield np.stack([rows[i], columns[j]], axis=1)


def _correlation(thumbnails: npt.NDArray[np.uint8], pairs: Pairs) -> npt.NDArray[np.float32]:
    """Of each pair's small versions."""
    result = np.empty(len(pairs), np.float32)
    for start in range(0, len(pairs), 8 * BLOCK):
        part = slice(start, start + 8 * BLOCK)
        one, other = (_standardised(thumbnails[pairs[part, side]]) for side in (0, 1))
        result[part] = (one * other).mean(1)
    return result


def _standardised(thumbnails: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    flat = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    flat -= flat.mean(1, keepdims=True)
    flat /= flat.std(1, keepdims=True)
    return flat
