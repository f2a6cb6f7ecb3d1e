"""Images as uint8 tensors of one size: held in memory, or decoded from files when they are asked for.

Any picture becomes C×size×size the same way: turned as its EXIF says, made RGB or grey, its shorter side
scaled to `size`, and the middle cut out. One that has this size already is not resampled.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from npmatch.errors import NPMatchError
from npmatch.types import ImageSet, ImageStore

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # Pillow reads many more, few as well tested
MAX_PIXELS = 100_000_000


class ArrayImages(ImageStore):
    """Images held in memory."""

    def __init__(self, pixels: Tensor) -> None:
        """`pixels`: uint8, N C H W."""
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            found = f"{str(pixels.dtype).removeprefix('torch.')} of {pixels.ndim} dimensions"
            raise NPMatchError(f"images must be uint8 of 4 dimensions (N C H W), not {found}")
        self.pixels = pixels.contiguous()
        _, channels, height, width = pixels.shape
        self.shape = (channels, height, width)

    def __len__(self) -> int:
        """N."""
        return len(self.pixels)

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        return self.pixels.index_select(0, index)  # twenty times as fast here as pixels[index]


class FileImages(ImageStore):
    """Images decoded from their files each time they are asked for."""

    def __init__(self, paths: Sequence[str | Path], size: int, channels: int = 3) -> None:
        """`size`: the side, in pixels, of the square that every image becomes."""
        # One array of bytes and not a list of objects: loader processes share it with their parent, whereas
        # counting references to a million Python strings would copy them into each.
        self._paths = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        self.shape = (channels, size, size)

    def __len__(self) -> int:
        """N."""
        return len(self._paths)

    def path(self, position: int) -> Path:
        """The file of one image."""
        return Path(os.fsdecode(bytes(self._paths[position])))

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        channels, size, _ = self.shape
        taken = torch.empty((len(index), *self.shape), dtype=torch.uint8)
        for row, position in enumerate(index.tolist()):
            taken[row] = decode_image(self.path(position), size, channels)
        return taken


def decode_image(source: str | Path | BinaryIO, size: int, channels: int = 3, max_pixels: int = MAX_PIXELS) -> Tensor:
    """A file, or an open binary one, as uint8 C×size×size; of an animation, its first frame."""
    name = str(source) if isinstance(source, str | Path) else getattr(source, "name", "the image")
    try:
        if isinstance(source, str | Path) and not stat.S_ISREG(os.stat(source).st_mode):
            raise OSError("not a regular file")  # on a pipe a reader would wait for ever
        with Image.open(source, formats=FORMATS) as image:
            # Known from the header alone, so that a small file cannot ask for gigabytes.
            if image.width * image.height > max_pixels:
                area = f"{image.width}×{image.height}"
                raise NPMatchError(f"{area} pixels, more than the {max_pixels:,} allowed; scale it down")
            # A JPEG far larger than needed is decoded at a half, quarter or eighth of its size, which takes a fraction
            # of the time. Twice the wanted side is left for the scaling that follows.
            image.draft(None, (2 * size, 2 * size))
            return to_tensor(image, size, channels)
    except NPMatchError as error:
        raise NPMatchError(f"{name}: {error}") from error
    except FileNotFoundError as error:
        raise NPMatchError(f"{name}: no such file; restore it or take it out of the data") from error
    except Exception as error:  # decoders of broken files fail in many ways: OSError, SyntaxError, struct.error
        # Pillow's own words name the file again, or where an upload lies in memory.
        unknown = "of no known format" if isinstance(error, UnidentifiedImageError) else ""
        reason = unknown or " ".join(str(error).split()) or type(error).__name__
        raise NPMatchError(
            f"{name}: not a readable image ({reason}); remove the file, or save it again as PNG or JPEG"
        ) from error


def to_tensor(image: Image.Image, size: int, channels: int = 3) -> Tensor:
    """A Pillow image as uint8 C×size×size."""
    refuse_unknown_range(image)
    square = _middle_square(to_mode(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB"), size)
    return torch.from_numpy(np.array(square)).view(size, size, channels).permute(2, 0, 1).contiguous()


def refuse_unknown_range(image: Image.Image) -> None:
    """Pixels of which nobody can say how bright the brightest is: scaled by a guess, they would be black or white."""
    kind = "floating-point" if image.mode == "F" else "32-bit"
    if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):  # in a PGM, "I" are 16 bits
        raise NPMatchError(f"holds {kind} pixels, whose range is unknown; save it with 8 or 16 bits")


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """RGB or L, whatever the image was: 16 bits scaled to 8, transparency laid on white."""
    if image.mode.startswith("I"):  # "I;16" and its kin; Pillow opens 16-bit PGM as "I"
        # Pillow's own conversion clips at 255, which turns nearly every 16-bit image white.
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8))
    if image.has_transparency_data:
        paper = Image.new("RGBA", image.size, "white")
        paper.alpha_composite(image.convert("RGBA"))
        image = paper
    if image.mode == "LAB":  # of which Pillow makes RGB, but no grey
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _middle_square(image: Image.Image, size: int) -> Image.Image:
    """Shorter side to `size` and the centre cut out, in one go: a long strip is never enlarged whole."""
    if image.size == (size, size):
        return image
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


class SelectedImages(ImageStore):
    """The images of another store at `index`, in that order."""

    def __init__(self, store: ImageStore, index: Tensor) -> None:
        """`index`: n, int64, positions in `store`."""
        self.store, self.index = store, index
        self.shape = store.shape

    def __len__(self) -> int:
        """How many were selected."""
        return len(self.index)

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        return self.store.take(self.index[index])


class JoinedImages(ImageStore):
    """The images of two stores, one after the other."""

    def __init__(self, first: ImageStore, second: ImageStore) -> None:
        """Both hold images of one shape."""
        self.first, self.second = first, second
        self.shape = first.shape

    def __len__(self) -> int:
        """N."""
        return len(self.first) + len(self.second)

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        taken = torch.empty((len(index), *self.shape), dtype=torch.uint8)
        in_first = index < len(self.first)
        taken[in_first] = self.first.take(index[in_first])
        taken[~in_first] = self.second.take(index[~in_first] - len(self.first))
        return taken


def file_of(images: ImageStore, position: int) -> Path | None:
    """An image's file; None where images do not come as one file each."""
    match images:
        case FileImages():
            return images.path(position)
        case SelectedImages():
            return file_of(images.store, int(images.index[position]))
        case JoinedImages():
            own = len(images.first)
            part, place = (images.first, position) if position < own else (images.second, position - own)
            return file_of(part, place)
    return None


def select_images(images: ImageSet, index: Tensor) -> ImageSet:
    """Images at `index`, n int64, with their labels and names."""
    names = [images.names[position] for position in index.tolist()] if images.names else []
    return ImageSet(SelectedImages(images.images, index), images.labels[index], names)
