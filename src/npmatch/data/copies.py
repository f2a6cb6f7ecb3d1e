"""Copies: images of a training set that show the same picture.

A held-out image tells nothing new about a model that was trained on a copy of it, so a split must not separate the two.
Copies are equal byte for byte (files) or pixel for pixel, or they look the same, as `data.check.duplicates` defines it.
Pictures that look the same under two labels are not copies: the difference that people saw is too small for that test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch.data.check.duplicates import SIDE, group_alike
from npmatch.data.check.findings import DataReport
from npmatch.data.labels import positions_by_name
from npmatch.data.loading import iterate_images
from npmatch.types import FOREIGN, ImageSet

Groups = Sequence[Sequence[int]]  # positions of the images in each group of copies; groups may overlap
BATCH = 128  # images that are decoded at a time
GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue, as in Pillow's conversion to grey


def copies_in_report(report: DataReport, images: ImageSet) -> Groups:
    """The copies that a check has found among training images."""
    position = positions_by_name(images)
    groups = {finding.kind: finding.groups for finding in report.findings if finding.groups}
    differ = set(map(tuple, groups.pop("near-two-labels", [])))
    same = [group for of_kind in groups.values() for group in of_kind if tuple(group) not in differ]
    return [[position[name] for name in group if name in position] for group in same]


def copies_in_images(images: ImageSet, workers: int) -> Groups:
    """The copies among images that no check has seen; all of them are decoded."""
    digests: list[bytes] = []
    thumbnails = np.zeros((len(images), SIDE, SIDE), np.uint8)
    for batch in iterate_images(images.images, BATCH, workers):
        thumbnails[len(digests) : len(digests) + len(batch)] = _thumbnails(batch)
        digests += [hashlib.blake2b(pixels.numpy().tobytes(), digest_size=16).digest() for pixels in batch]
    equal: dict[bytes, list[int]] = {}
    for position, digest in enumerate(digests):
        equal.setdefault(digest, []).append(position)
    alike = [group for group in group_alike(thumbnails) if len(set(images.labels[group].tolist()) - {-1, FOREIGN}) < 2]
    return [*(group for group in equal.values() if len(group) > 1), *alike]


def _thumbnails(pixels: Tensor) -> npt.NDArray[np.uint8]:
    """uint8 n C H W → n SIDE SIDE, grey."""
    weights = torch.tensor(GREY) if pixels.shape[1] == len(GREY) else torch.ones(1) / pixels.shape[1]
    grey = (pixels.float() * weights.view(-1, 1, 1)).sum(1, keepdim=True)
    small = F.interpolate(grey, (SIDE, SIDE), mode="bilinear", antialias=True)
    return small[:, 0].round().to(torch.uint8).numpy()


def picture_of_each(images: int, copies: Groups) -> npt.NDArray[np.int64]:
    """The number of the picture that each of `images` images shows; copies show the same one."""
    if not copies:
        return np.arange(images)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = np.array([(group[0], other) for group in copies for other in group[1:]], dtype=np.int64).reshape(-1, 2)
    edges = coo_array((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), shape=(images, images))
    picture: npt.NDArray[np.int64] = connected_components(edges, directed=False)[1].astype(np.int64)
    return picture
