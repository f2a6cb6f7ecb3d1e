"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017), read from IDX files, plain or gzipped.

An IDX file consists of a magic number, whose last byte is the number of dimensions, the size of each dimension, and
the bytes of the array. Magic number and sizes are big-endian 32-bit integers.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from npmatch.data.images import ArrayImages
from npmatch.errors import NPMatchError
from npmatch.types import Dataset, ImageSet

IMAGES, LABELS = 0x0803, 0x0801  # magic numbers: unsigned bytes in three dimensions and in one
SIDE = 28
MAX_BYTES = 2**26  # of a file; the largest one of both data sets has 47 million
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist


@dataclass(frozen=True)
class Layout:
    """The possible folders of one of the two data sets, and its constants."""

    name: str
    folders: tuple[str, ...]  # under root; root itself is last, as both data sets use the same file names
    class_names: tuple[str, ...]
    mean: float
    std: float
    advice: str  # end of the error message if the files are missing


def read_fashion_mnist(root: Path) -> Dataset:
    """60,000 training and 10,000 test images of ten kinds of clothing, 28×28, grey."""
    return _read(root, FASHION_MNIST)


def read_mnist(root: Path) -> Dataset:
    """60,000 training and 10,000 test images of handwritten digits, 28×28, grey."""
    return _read(root, MNIST)


def locate_fashion_mnist(root: Path | None) -> Path | None:
    """`root` if it has the files; otherwise the folder of Debian's package, if that is installed."""
    has_files = root is not None and _find_folder(root, FASHION_MNIST) is not None
    return DEBIAN_FOLDER if not has_files and DEBIAN_FOLDER.is_dir() else root


def read_idx(path: Path, magic: int) -> Tensor:
    """The array in an IDX file, uint8; a file of another kind or an incomplete one is an error."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:  # raised by gzip for a truncated or altered file
        raise NPMatchError(f"{path}: cannot be read ({error}); download it again") from error
    if len(content) > MAX_BYTES:  # a small archive may expand to gigabytes of zeros
        raise NPMatchError(f"{path}: more than {MAX_BYTES:,} bytes, which neither data set has; download it again")
    dimensions = magic & 0xFF
    start = 4 * (1 + dimensions)
    if len(content) < start:
        raise NPMatchError(f"{path}: {len(content)} bytes, too few for an IDX file; download it again")
    actual_magic, *sizes = struct.unpack(f">{1 + dimensions}I", content[:start])
    if actual_magic != magic:
        kinds = f"begins with {actual_magic:#010x}, not with {magic:#010x}"
        raise NPMatchError(f"{path}: {kinds}; this is another kind of file")
    if (num_bytes := len(content) - start) != math.prod(sizes) or not num_bytes:
        shape = "×".join(str(size) for size in sizes)
        raise NPMatchError(f"{path}: {num_bytes} bytes of data where its header says {shape}; download it again")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(sizes)


def _read(root: Path, layout: Layout) -> Dataset:
    folder = _find_folder(root, layout)
    if folder is None:
        *subfolders, _ = layout.folders
        raise NPMatchError(
            f"{root}: no train-images-idx3-ubyte or train-images-idx3-ubyte.gz here, in {' or in '.join(subfolders)}; "
            f"{layout.advice}"
        )
    train, test = (_read_part(folder, part, len(layout.class_names)) for part in ("train", "t10k"))
    return Dataset(layout.name, layout.class_names, train, test, (layout.mean,), (layout.std,))


def _read_part(folder: Path, part: str, classes: int) -> ImageSet:
    images_file, labels_file = (_file(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(images_file, IMAGES), read_idx(labels_file, LABELS)
    number, height, width = images.shape
    if (height, width) != (SIDE, SIDE):
        raise NPMatchError(f"{images_file}: images of {height}×{width} pixels, where {SIDE}×{SIDE} are expected")
    if len(labels) != number:
        raise NPMatchError(f"{labels_file}: {len(labels)} labels for the {number} images of {images_file.name}")
    if (largest := int(labels.max())) >= classes:
        raise NPMatchError(f"{labels_file}: label {largest}, where {classes - 1} is the largest possible")
    return ImageSet(ArrayImages(images[:, None]), labels.long())


def _find_folder(root: Path, layout: Layout) -> Path | None:
    """The first of the layout's folders under `root` that has training images."""
    folders = (root / folder for folder in layout.folders)
    return next((folder for folder in folders if _find_file(folder, "train-images-idx3-ubyte")), None)


def _find_file(folder: Path, name: str) -> Path | None:
    """The file `name` or its gzipped form; None if there is neither."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _file(folder: Path, name: str) -> Path:
    path = _find_file(folder, name)
    if path is None:
        raise NPMatchError(f"{folder / name}: no such file, nor {name}.gz; put it beside the others")
    return path


_CLOTHES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"

FASHION_MNIST = Layout(
    name="fashion-mnist",
    folders=("FashionMNIST/raw", "fashion-mnist", "."),
    class_names=tuple(_CLOTHES.split(", ")),
    mean=0.2860,
    std=0.3530,
    advice="give their folder as --data DIR, or on Debian: apt-get install dataset-fashion-mnist",
)

MNIST = Layout(
    name="mnist",
    folders=("MNIST/raw", "mnist", "."),
    class_names=tuple(str(digit) for digit in range(10)),
    mean=0.1307,
    std=0.3081,
    advice="give their folder as --data DIR",
)
