"""What one image file is: read to its end, so that a file cut short is found before a training step meets it."""

from __future__ import annotations

import hashlib
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
from npmatch.data.images import FORMATS, MAX_PIXELS, refuse_unknown_range, to_mode
from npmatch.data.loading import fetch_in_order
from npmatch.errors import NPMatchError

CHUNK = 32  # files a worker process is given at a time
DRAFT = (4 * SIDE, 4 * SIDE)  # a JPEG is read to its end, but made no larger than this needs
LONGEST = 8  # sides of a picture of which the middle square still shows something
# Endings under which each format is expected; "MPO" is what several phones call a JPEG of several pictures.
ENDINGS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}


class Inspection(NamedTuple):
    """What was found in one file."""

    problem: str = ""  # why it cannot be used: a kind of `findings.KINDS`; empty where it can
    detail: str = ""  # the problem in words
    notes: tuple[str, ...] = ()  # kinds that training copes with
    width: int = 0
    height: int = 0
    mode: str = ""  # Pillow's word for the kind of pixels
    format: str = ""
    digest: bytes = b""  # of the file's content; empty where it could not be read
    thumbnail: npt.NDArray[np.uint8] | None = None  # SIDE SIDE, grey


class BrokenFileError(Exception):
    """A file that cannot be used: the kind of problem, and what is wrong in words."""


def inspect_files(paths: Sequence[str], workers: int) -> Iterator[list[Inspection]]:
    """The inspections of all files in order, some at a time, made by worker processes."""
    encoded = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)  # shared by processes, not copied
    starts = range(0, len(paths), CHUNK)
    yield from fetch_in_order(_InspectChunk(encoded), starts, min(workers, len(starts)))


class _InspectChunk:
    """A class and not a closure, because workers may be started by pickling."""

    def __init__(self, paths: npt.NDArray[np.bytes_]) -> None:
        self.paths = paths

    def __call__(self, start: int) -> list[Inspection]:
        return [inspect_file(os.fsdecode(bytes(path))) for path in self.paths[start : start + CHUNK]]


def inspect_file(path: str) -> Inspection:
    """Everything known of one file; nothing in it can raise."""
    try:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
            file.seek(0)
            try:
                return _decode(file, os.path.splitext(path)[1].lower())._replace(digest=digest)
            except BrokenFileError as error:
                kind, detail = error.args
                return Inspection(kind, detail, digest=digest)
    except BrokenFileError as error:
        return Inspection(*error.args)
    except OSError as error:
        return Inspection("unreadable", error.strerror or str(error))


def open_regular(path: str) -> BufferedReader:
    """An open file with something in it; a pipe or a device, on which a reader would wait for ever, is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, ValueError) as error:  # the latter of a name with a zero byte
        broken = "the link leads nowhere" if os.path.islink(path) else "no such file"
        raise BrokenFileError("missing", broken) from error
    if not stat.S_ISREG(found.st_mode):
        raise BrokenFileError("unreadable", "not a regular file")
    if found.st_size == 0:
        raise BrokenFileError("empty-file", "0 bytes")
    return open(path, "rb")


def _decode(file: BufferedReader, ending: str) -> Inspection:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata and on sizes that are tested below
        try:
            image = Image.open(file, formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise BrokenFileError("huge", _words(error)) from error
        except Exception as error:
            raise BrokenFileError("not-an-image", "none of the formats " + ", ".join(FORMATS)) from error
        with image:
            if image.width * image.height > MAX_PIXELS:
                limit = f"more than the {MAX_PIXELS:,} allowed"
                raise BrokenFileError("huge", f"{image.width}×{image.height} pixels, {limit}")
            found = Inspection(
                width=image.width, height=image.height, mode=image.mode, format=image.format or "", notes=()
            )
            try:
                refuse_unknown_range(image)
                found = found._replace(notes=tuple(_notes(image, ending)))
                image.draft("L", DRAFT)
                upright = to_mode(ImageOps.exif_transpose(image), "L")
            except NPMatchError as error:
                raise BrokenFileError("float-pixels", str(error)) from error
            except Exception as error:  # decoders of broken files fail in many ways
                raise BrokenFileError("truncated", f"cannot be decoded to its end ({_words(error)})") from error
            small = upright.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            return found._replace(thumbnail=np.array(small))


def _notes(image: Image.Image, ending: str) -> Iterator[str]:
    """Kinds of what is unusual about a picture that training can use."""
    if ending not in ENDINGS.get(image.format or "", ()):
        yield "wrong-extension"
    if getattr(image, "is_animated", False) and image.format != "MPO":
        yield "animated"
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        yield "exif-rotated"
    if max(image.size) > LONGEST * min(image.size):
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


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
