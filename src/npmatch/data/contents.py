"""What a file contains, whatever path leads to it: links to a known image and copies of it are recognised."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from io import BufferedReader
from pathlib import Path

from torch import Tensor

from npmatch.data.images import decode_image, file_of
from npmatch.data.loading import iterate_images
from npmatch.errors import NPMatchError
from npmatch.types import ImageStore

HASHED = 1 << 30  # bytes: more than the largest image that is decoded takes; but anything may follow an image
CHUNK = 1 << 20  # bytes that are read at a time


def digest_of(file: BufferedReader) -> bytes:
    """A hash of the content of an open file; of a file larger than HASHED, that of its beginning and its size."""
    digest = hashlib.blake2b(os.fstat(file.fileno()).st_size.to_bytes(8, "little"), digest_size=16)
    file.seek(0)
    for _ in range(HASHED // CHUNK):
        if not (chunk := file.read(CHUNK)):
            break
        digest.update(chunk)
    return digest.digest()


class KnownImages:
    """Images to compare files with: by their bytes or, for images that are not in files, by their pixels.

    Files are compared by their size first, so that hardly any known file is read.
    """

    def __init__(self, images: ImageStore, names: Sequence[str]) -> None:
        """`names`: one for each image."""
        self.images, self.names = images, names
        self._files: dict[int, dict[Path, str]] = {}  # size in bytes → the files of this size with their names
        self._in_memory = False
        for position, name in enumerate(names):
            file = file_of(images, position)
            if file is None:
                self._in_memory = True
            elif (size := _size(file)) is not None:
                self._files.setdefault(size, {})[file] = name
        self._digests: dict[int, dict[bytes, str]] = {}  # the same with the files' digests, as far as needed

    def name_of(self, file: str | Path) -> str | None:
        """The name of the known image that a file contains; None if it contains no known image."""
        size = _size(file)
        if size in self._files:
            if size not in self._digests:
                self._digests[size] = {_digest(known): name for known, name in self._files[size].items()}
            if (name := self._digests[size].get(_digest(file))) is not None:
                return name
        return self._name_by_pixels(file) if self._in_memory and size is not None else None

    def _name_by_pixels(self, file: str | Path) -> str | None:
        channels, side, _ = self.images.shape
        try:
            return self._pixels.get(_digest_pixels(decode_image(file, side, channels)))
        except NPMatchError:  # not an image
            return None

    @cached_property
    def _pixels(self) -> dict[bytes, str]:
        """Digest of the pixels → name."""
        images = (image for batch in iterate_images(self.images, 256) for image in batch)
        return {_digest_pixels(image): name for image, name in zip(images, self.names, strict=True)}


def _size(file: str | Path) -> int | None:
    """Size of a regular file in bytes; None for anything else, and for an empty file, which contains no image."""
    try:
        return (os.path.isfile(file) and os.stat(file).st_size) or None
    except OSError:
        return None


def _digest(file: str | Path) -> bytes:
    """The digest of a file's content; empty, as no other is, if it cannot be read."""
    try:
        with open(file, "rb") as content:
            return digest_of(content)
    except OSError:
        return b""


def _digest_pixels(image: Tensor) -> bytes:
    return hashlib.blake2b(image.contiguous().numpy().tobytes(), digest_size=16).digest()
