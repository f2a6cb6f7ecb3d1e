"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from the binary or the Python version.

The binary version is read directly: records of one or two label bytes and 3×32×32 pixel bytes. The Python version is a
pickle, which can execute any code, so torchvision reads it: it verifies checksums before it unpickles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from npmatch.data.images import ArrayImages
from npmatch.data.sources.benchmarks import open_torchvision
from npmatch.errors import NPMatchError
from npmatch.types import FOREIGN, Dataset, ImageSet

PIXELS = 3 * 32 * 32
ANIMALS = slice(2, 8)  # bird, cat, deer, dog, frog, horse: the labels in CIFAR-10


@dataclass(frozen=True)
class Layout:
    """The files of one of the two data sets, and its constants."""

    name: str
    folder: str  # of the binary version
    train_files: tuple[str, ...]
    test_file: str
    names_file: str
    label_bytes: int  # before the pixels; the last of them is the class
    class_names: tuple[str, ...]
    torchvision: str  # class in torchvision.datasets that reads the Python version
    python_folder: str  # of the Python version
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def read_cifar10(root: Path) -> Dataset:
    """50,000 training and 10,000 test images of 10 classes, 32×32."""
    return _read(root, CIFAR10)


def read_cifar10_open(root: Path) -> Dataset:
    """CIFAR-10 as an open set: the six animals are the classes, and the images of the four vehicles are foreign."""
    dataset = read_cifar10(root)
    assert dataset.test is not None
    known = torch.full((len(dataset.class_names),), FOREIGN)  # label in CIFAR-10 → label in the open set
    known[ANIMALS] = torch.arange(ANIMALS.stop - ANIMALS.start)
    test_labels = known[dataset.test.labels]
    is_known = test_labels != FOREIGN

    def test_part(chosen: torch.Tensor) -> ImageSet:
        assert dataset.test is not None
        return ImageSet(ArrayImages(dataset.test.images.take(chosen.nonzero().flatten())), test_labels[chosen])

    return replace(
        dataset,
        name="cifar10-open",
        class_names=dataset.class_names[ANIMALS],
        train=ImageSet(dataset.train.images, known[dataset.train.labels]),
        test=test_part(is_known),
        foreign_test=test_part(~is_known),
    )


def read_cifar100(root: Path) -> Dataset:
    """50,000 training and 10,000 test images of 100 classes, 32×32."""
    return _read(root, CIFAR100)


def _read(root: Path, layout: Layout) -> Dataset:
    is_binary_folder = root.name == layout.folder or (root / layout.train_files[0]).is_file()
    folder = root if is_binary_folder else root / layout.folder
    if folder.is_dir():
        names = _read_names(folder / layout.names_file, layout.class_names)
        train = _read_binary([folder / file for file in layout.train_files], layout)
        test = _read_binary([folder / layout.test_file], layout)
    else:
        names = layout.class_names
        train, test = (_read_pickled(root, layout, is_train) for is_train in (True, False))
    return Dataset(layout.name, names, train, test, layout.mean, layout.std)


def _read_binary(files: list[Path], layout: Layout) -> ImageSet:
    """All records of `files`, in order."""
    record = layout.label_bytes + PIXELS
    pixels, labels = [], []
    for file in files:
        if not file.is_file():
            raise NPMatchError(f"{file}: no such file; unpack the binary version of {layout.name} again")
        content = np.fromfile(file, dtype=np.uint8)
        if len(content) == 0 or len(content) % record:
            raise NPMatchError(
                f"{file}: {len(content)} bytes are not a whole number of records of {record} bytes; "
                f"download {layout.name} again"
            )
        rows = content.reshape(-1, record)
        pixels.append(torch.from_numpy(rows[:, layout.label_bytes :]).view(-1, 3, 32, 32))
        labels.append(torch.from_numpy(rows[:, layout.label_bytes - 1].astype(np.int64)))
        if (largest := int(labels[-1].max())) >= len(layout.class_names):
            raise NPMatchError(
                f"{file}: label {largest}, where {len(layout.class_names) - 1} is the largest possible; "
                f"this is not {layout.name}'s binary version, or it is damaged"
            )
    return ImageSet(ArrayImages(torch.cat(pixels)), torch.cat(labels))


def _read_names(file: Path, default: tuple[str, ...]) -> tuple[str, ...]:
    """The class names in `file`, one per line; `default` if the file is missing or incomplete."""
    names = tuple(file.read_text().split()) if file.is_file() else ()
    return names if len(names) == len(default) else default


def _read_pickled(root: Path, layout: Layout, train: bool) -> ImageSet:
    folders = f"{layout.folder}/ or {layout.python_folder}/"
    wanted = f"{folders} from https://www.cs.toronto.edu/~kriz/cifar.html"
    published = open_torchvision(layout.torchvision, root, wanted, train=train)
    return ImageSet(
        ArrayImages(torch.from_numpy(published.data).permute(0, 3, 1, 2)),  # torchvision has N H W C
        torch.tensor(published.targets, dtype=torch.int64),
    )


_CIFAR10_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR10 = Layout(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test_file="test_batch.bin",
    names_file="batches.meta.txt",
    label_bytes=1,
    class_names=tuple(_CIFAR10_NAMES.split()),
    torchvision="CIFAR10",
    python_folder="cifar-10-batches-py",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

CIFAR100 = Layout(
    name="cifar100",
    folder="cifar-100-binary",
    train_files=("train.bin",),
    test_file="test.bin",
    names_file="fine_label_names.txt",
    label_bytes=2,  # the coarse class of 20, then the fine one of 100
    class_names=tuple(_CIFAR100_NAMES.split()),
    torchvision="CIFAR100",
    python_folder="cifar-100-python",
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)
