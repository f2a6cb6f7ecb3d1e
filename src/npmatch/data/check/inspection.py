"""The inspection of one image file, which is decoded to its end: a truncated file is found before training starts."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from io import BufferedReader
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps

from npmatch.data.check.duplicates import SIDE
from npmatch.data.contents import digest_of
from npmatch.data.images import (
    EXTENSIONS,
    FORMATS,
    MAX_PIXELS,
    decode_opened,
    refuse_many_scans,
    refuse_unknown_range,
    to_mode,
)
from npmatch.data.loading import fetch_in_order
from npmatch.errors import NPMatchError

CHUNK = 32  # files that a worker process inspects at a time
DRAFT = (4 * SIDE, 4 * SIDE)  # pixels: a JPEG is decoded to its end, but at a reduced size not far above this
MAX_ASPECT_RATIO = 8  # of a longer picture the central square shows too little


class Inspection(NamedTuple):
    """The result of inspecting one file."""

    problem: str = ""  # why it cannot be used, a kind of `findings.KINDS`; empty if it can
    detail: str = ""  # the problem in words
    notes: tuple[str, ...] = ()  # kinds of findings about a usable file
    width: int = 0
    height: int = 0
    mode: str = ""  # Pillow's mode, such as RGB
    format: str = ""
    digest: bytes = b""  # hash of the content; empty if the file cannot be used
    thumbnail: npt.NDArray[np.uint8] | None = None  # SIDE SIDE, grey; None if the file could not be decoded
    pixels: npt.NDArray[np.uint8] | None = None  # 3 S S, as training decodes them; None if they were not asked for


class BrokenFileError(Exception):
    """A file that cannot be used; its arguments are the kind of problem and a description."""


def inspect_files(paths: Sequence[str], workers: int, size: int | None = None) -> Iterator[list[Inspection]]:
    """Inspects files in worker processes; yields the results in order, CHUNK at a time.

    With `size`, each inspection also holds the image as training decodes it to that side in pixels.
    """
    encoded = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)  # shared by processes without copies
    starts = range(0, len(paths), CHUNK)
    yield from fetch_in_order(_InspectChunk(encoded, size), starts, workers)


class _InspectChunk:
    """Inspects the chunk that begins at `start`; a class because workers may get it by pickling, unlike a closure."""

    def __init__(self, paths: npt.NDArray[np.bytes_], size: int | None) -> None:
        self.paths, self.size = paths, size

    def __call__(self, start: int) -> list[Inspection]:
        return [inspect_file(os.fsdecode(bytes(path)), self.size) for path in self.paths[start : start + CHUNK]]


def inspect_file(path: str, size: int | None = None) -> Inspection:
    """Inspects one file; whatever is wrong with the file is part of the result, not raised."""
    try:
        with open_regular(path) as file:
            inspection = _decode(file, os.path.splitext(path)[1].lower(), size)
            return inspection._replace(digest=digest_of(file))
    except BrokenFileError as error:
        return Inspection(*error.args)
    except OSError as error:
        return Inspection("unreadable", error.strerror or str(error))


def open_regular(path: str) -> BufferedReader:
    """Opens a regular file that is not empty; others raise BrokenFileError, as reading a pipe could block forever."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, ValueError) as error:  # ValueError: a name with a zero byte
        detail = "broken link" if os.path.islink(path) else "no such file"
        raise BrokenFileError("missing", detail) from error
    if not stat.S_ISREG(status.st_mode):
        raise BrokenFileError("unreadable", "not a regular file")
    if status.st_size == 0:
        raise BrokenFileError("empty-file", "0 bytes")
    return open(path, "rb")


def _decode(file: BufferedReader, ending: str, size: int | None) -> Inspection:
    """The inspection of an open file whose name has this ending; BrokenFileError if it cannot be decoded."""
    pixels = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata, and of sizes that are checked below
        try:
            image = Image.open(file, formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise BrokenFileError("huge", _message(error)) from error
        except Exception as error:
            raise BrokenFileError("not-an-image", "none of the formats " + ", ".join(FORMATS)) from error
        with image:
            if image.width * image.height > MAX_PIXELS:
                limit = f"more than the {MAX_PIXELS:,} allowed"
                raise BrokenFileError("huge", f"{image.width}×{image.height} pixels, {limit}")
            try:
                refuse_many_scans(image)
            except NPMatchError as error:
                raise BrokenFileError("many-scans", str(error)) from error
            inspection = Inspection(width=image.width, height=image.height, mode=image.mode, format=image.format or "")
            try:
                refuse_unknown_range(image)
                notes = tuple(_notes(image, ending))
                if size is None:
                    image.draft("L", DRAFT)
                else:  # decoded once, for training and for the thumbnail
                    pixels = decode_opened(image, size).numpy()
                upright = to_mode(ImageOps.exif_transpose(image), "L")
            except NPMatchError as error:
                raise BrokenFileError("float-pixels", str(error)) from error
            except Exception as error:  # decoders of broken files fail in many ways
                raise BrokenFileError("truncated", f"cannot be decoded to its end ({_message(error)})") from error
            small = upright.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            return inspection._replace(notes=notes, thumbnail=np.array(small), pixels=pixels)


def _notes(image: Image.Image, ending: str) -> Iterator[str]:
    """Kinds of findings about a picture that training can use."""
    form = "JPEG" if image.format == "MPO" else image.format or ""  # several phones write JPEGs of several pictures
    if ending not in EXTENSIONS.get(form, ()):
        yield "wrong-extension"
    if getattr(image, "is_animated", False) and image.format != "MPO":
        yield "animated"
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        yield "exif-rotated"
    if max(image.size) > MAX_ASPECT_RATIO * min(image.size):
        yield "strip"
    if image.has_transparency_data:
        yield "transparent"
    if image.mode == "P":
        yield "palette"
    elif image.mode == "CMYK":
        yield "cmyk"
    elif image.mode.startswith("I"):
        yield "16-bit"
    elif image.mode in ("1", "L", "LA", "La"):
        yield "greyscale"


def _message(error: Exception) -> str:
    """The message of an exception on one line."""
    return " ".join(str(error).split()) or type(error).__name__
