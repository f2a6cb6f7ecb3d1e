"""Images as uint8 tensors of one size: held in memory, or decoded from files on access.

Every picture becomes C×size×size in the same way: it is rotated by its EXIF orientation, converted to RGB or grey, its
shorter side is scaled to `size`, and the central square is cropped. An image that has this size is not resampled.
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

from npmatch.data.jpeg import MAX_SCANS, count_scans
from npmatch.errors import NPMatchError
from npmatch.types import ImageSet, ImageStore

# Pillow's name of each format that is read → the usual endings of its files. Pillow reads many more formats, most of
# them less well tested.
EXTENSIONS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
FORMATS = tuple(EXTENSIONS)
MAX_PIXELS = 100_000_000
READ_FOR_SCANS = 2**26  # bytes of a JPEG in which scans are counted


class ArrayImages(ImageStore):
    """Images held in memory."""

    def __init__(self, pixels: Tensor) -> None:
        """`pixels`: uint8, N C H W."""
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            actual = f"{str(pixels.dtype).removeprefix('torch.')} of {pixels.ndim} dimensions"
            raise NPMatchError(f"images must be uint8 of 4 dimensions (N C H W), not {actual}")
        self.pixels = pixels.contiguous()
        _, channels, height, width = pixels.shape
        self.shape = (channels, height, width)

    def __len__(self) -> int:
        """Number of images."""
        return len(self.pixels)

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        return self.pixels.index_select(0, index)  # on the CPU twenty times as fast as pixels[index]


class FileImages(ImageStore):
    """Images that are decoded from their files on each access."""

    def __init__(self, paths: Sequence[str | Path], size: int, channels: int = 3) -> None:
        """`size`: side in pixels of the square that every image is scaled and cropped to."""
        # One array of bytes in place of a list of strings: worker processes share its memory with their parent,
        # whereas reference counting would copy a million Python strings into each of them.
        self._paths = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        self.shape = (channels, size, size)

    def __len__(self) -> int:
        """Number of images."""
        return len(self._paths)

    def path(self, position: int) -> Path:
        """The file of the image at `position`."""
        return Path(os.fsdecode(bytes(self._paths[position])))

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        channels, size, _ = self.shape
        taken = torch.empty((len(index), *self.shape), dtype=torch.uint8)
        for row, position in enumerate(index.tolist()):
            taken[row] = decode_image(self.path(position), size, channels)
        return taken


class DecodedImages(FileImages):
    """Images of files that were decoded once and are held in memory."""

    def __init__(self, files: FileImages, pixels: Tensor) -> None:
        """`pixels`: uint8, N C H W, the images of all `files`."""
        self._paths, self.shape = files._paths, files.shape
        self.pixels = pixels.contiguous()

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        return self.pixels.index_select(0, index)


def decode_image(source: str | Path | BinaryIO, size: int, channels: int = 3, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Decodes a path or an open binary file into uint8, C×size×size; of an animation, the first frame."""
    name = str(source) if isinstance(source, str | Path) else getattr(source, "name", "the image")
    try:
        if isinstance(source, str | Path) and not stat.S_ISREG(os.stat(source).st_mode):
            raise OSError("not a regular file")  # reading from a pipe would block forever
        with Image.open(source, formats=FORMATS) as image:
            # The header alone gives the size, so that a small file cannot make the decoder allocate gigabytes.
            if image.width * image.height > max_pixels:
                area = f"{image.width}×{image.height}"
                raise NPMatchError(f"{area} pixels, more than the {max_pixels:,} allowed; scale it down")
            refuse_many_scans(image)
            return decode_opened(image, size, channels)
    except NPMatchError as error:
        raise NPMatchError(f"{name}: {error}") from error
    except FileNotFoundError as error:
        raise NPMatchError(f"{name}: no such file; restore it or take it out of the data") from error
    except Exception as error:  # decoders of broken files fail in many ways: OSError, SyntaxError, struct.error
        # Pillow's message repeats the file name or, for an upload, gives a memory address.
        unknown = "of no known format" if isinstance(error, UnidentifiedImageError) else ""
        reason = unknown or " ".join(str(error).split()) or type(error).__name__
        raise NPMatchError(
            f"{name}: not a readable image ({reason}); remove the file, or save it again as PNG or JPEG"
        ) from error


def decode_opened(image: Image.Image, size: int, channels: int = 3) -> Tensor:
    """Decodes an image that is open, but not loaded yet, into uint8, C×size×size."""
    # A JPEG far larger than needed is decoded at a half, quarter or eighth of its size, which takes a fraction of the
    # time. At least twice `size` is left for the scaling that follows.
    image.draft(None, (2 * size, 2 * size))
    return to_tensor(image, size, channels)


def to_tensor(image: Image.Image, size: int, channels: int = 3) -> Tensor:
    """Converts a Pillow image to uint8, C×size×size."""
    refuse_unknown_range(image)
    square = _central_square(to_mode(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB"), size)
    return torch.from_numpy(np.array(square)).view(size, size, channels).permute(2, 0, 1).contiguous()


def refuse_many_scans(image: Image.Image) -> None:
    """Raises an error for a JPEG, open but not loaded, that repeats its scans to keep the decoder busy."""
    if image.format not in ("JPEG", "MPO") or not (file := getattr(image, "fp", None)):
        return
    position = file.tell()
    file.seek(0)
    scans = count_scans(file.read(READ_FOR_SCANS))
    file.seek(position)
    if scans > MAX_SCANS:
        raise NPMatchError(f"a JPEG of more than {MAX_SCANS} scans, which takes minutes to decode; save it again")


def refuse_unknown_range(image: Image.Image) -> None:
    """Raises an error for pixels without a known range: scaled by a guess, the image could be all black or white."""
    kind = "floating-point" if image.mode == "F" else "32-bit"
    if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):  # a PGM of mode "I" has 16 bits
        raise NPMatchError(f"holds {kind} pixels, whose range is unknown; save it with 8 or 16 bits")


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Converts an image of any mode to RGB or L: 16 bits are scaled to 8, transparency is put on white."""
    if image.mode.startswith("I"):  # "I;16" and its variants; Pillow opens a 16-bit PGM as "I"
        # Pillow's own conversion clips at 255, which turns nearly every 16-bit image white.
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8))
    if image.has_transparency_data:
        background = Image.new("RGBA", image.size, "white")
        background.alpha_composite(image.convert("RGBA"))
        image = background
    if image.mode == "LAB":  # Pillow converts LAB to RGB, but not to grey
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _central_square(image: Image.Image, size: int) -> Image.Image:
    """Scales the central square to `size`; cropping in the same step never enlarges the whole of a long strip."""
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
        """Number of selected images."""
        return len(self.index)

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        return self.store.take(self.index[index])


class JoinedImages(ImageStore):
    """The images of `first`, followed by those of `second`."""

    def __init__(self, first: ImageStore, second: ImageStore) -> None:
        """Both stores hold images of the same shape."""
        self.first, self.second = first, second
        self.shape = first.shape

    def __len__(self) -> int:
        """Number of images."""
        return len(self.first) + len(self.second)

    def take(self, index: Tensor) -> Tensor:
        """The images at `index` as uint8, n C H W."""
        taken = torch.empty((len(index), *self.shape), dtype=torch.uint8)
        in_first = index < len(self.first)
        taken[in_first] = self.first.take(index[in_first])
        taken[~in_first] = self.second.take(index[~in_first] - len(self.first))
        return taken


def is_in_memory(images: ImageStore) -> bool:
    """Whether images are taken from a store without decoding any."""
    match images:
        case ArrayImages() | DecodedImages():
            return True
        case SelectedImages():
            return is_in_memory(images.store)
        case JoinedImages():
            return is_in_memory(images.first) and is_in_memory(images.second)
    return False


def file_of(images: ImageStore, position: int) -> Path | None:
    """The file of the image at `position`; None for a store whose images are not in files of their own."""
    match images:
        case FileImages():
            return images.path(position)
        case SelectedImages():
            return file_of(images.store, int(images.index[position]))
        case JoinedImages():
            if position < len(images.first):
                return file_of(images.first, position)
            return file_of(images.second, position - len(images.first))
    return None


def select_images(images: ImageSet, index: Tensor) -> ImageSet:
    """The images at `index` (n, int64) with their labels and names."""
    names = [images.names[position] for position in index.tolist()] if images.names else []
    return ImageSet(SelectedImages(images.images, index), images.labels[index], names)
