"""Small files in both published formats of CIFAR, written by hand and read back."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets

from npmatch.data import ImageSet, load_dataset, make_split
from npmatch.errors import NPMatchError

TEN = "airplane automobile bird cat deer dog frog horse ship truck"
ROWS = 4  # images in a file


def pixel_bytes(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (ROWS, 3072), dtype=np.uint8)


def write_cifar10_binary(folder: Path) -> None:
    folder.mkdir(parents=True)
    for seed, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        labels = [(seed + row) % 10 for row in range(ROWS)]
        records = (bytes([label]) + row.tobytes() for label, row in zip(labels, pixel_bytes(seed), strict=True))
        (folder / f"{name}.bin").write_bytes(b"".join(records))


def write_cifar100_binary(folder: Path) -> None:
    folder.mkdir(parents=True)
    for seed, name in enumerate(["train", "test"]):
        records = (bytes([19, 96 + row]) + pixel_bytes(seed)[row].tobytes() for row in range(ROWS))
        (folder / f"{name}.bin").write_bytes(b"".join(records))


def write_pickles(root: Path, cls: type, contents: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes files of the Python version, and replaces torchvision's checksums by those of these files."""
    folder = root / cls.base_folder
    folder.mkdir(parents=True)
    sums = {}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    for attribute in ("train_list", "test_list"):
        monkeypatch.setattr(cls, attribute, [[name, sums[name]] for name, _ in getattr(cls, attribute)])
    monkeypatch.setattr(cls, "meta", cls.meta | {"md5": sums[cls.meta["filename"]]})


def read_by_hand(files: list[Path], label_bytes: int) -> tuple[list[int], list[bytes]]:
    """Labels and pixels of the binary version, by slicing bytes."""
    content = b"".join(file.read_bytes() for file in files)
    size = label_bytes + 3072
    records = [content[start : start + size] for start in range(0, len(content), size)]
    return [record[label_bytes - 1] for record in records], [record[label_bytes:] for record in records]


def assert_equals(part: ImageSet, expected: tuple[list[int], list[bytes]]) -> None:
    labels, pixels = expected
    assert part.labels.dtype == torch.int64
    assert part.labels.tolist() == labels
    images = part.images.take(torch.arange(len(part)))
    assert images.shape == (len(labels), 3, 32, 32)
    assert [image.numpy().tobytes() for image in images] == pixels


@pytest.mark.parametrize("inside", [False, True])
def test_cifar10_binary(tmp_path: Path, inside: bool) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar10_binary(folder)
    dataset = load_dataset("cifar10", folder if inside else tmp_path)
    assert dataset.class_names == tuple(TEN.split())
    assert_equals(dataset.train, read_by_hand([folder / f"data_batch_{i}.bin" for i in range(1, 6)], 1))
    assert_equals(dataset.test, read_by_hand([folder / "test_batch.bin"], 1))


def test_the_open_set_knows_the_animals_and_keeps_the_vehicles_unlabelled(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar10_binary(folder)
    dataset, closed = load_dataset("cifar10-open", tmp_path), load_dataset("cifar10", tmp_path)
    animals = ["bird", "cat", "deer", "dog", "frog", "horse"]
    assert dataset.class_names == tuple(animals)

    def renamed(label: int) -> int:
        name = TEN.split()[label]
        return animals.index(name) if name in animals else -2

    labels, pixels = read_by_hand([folder / f"data_batch_{i}.bin" for i in range(1, 6)], 1)
    assert_equals(dataset.train, ([renamed(label) for label in labels], pixels))
    assert -2 in dataset.train.labels
    test = list(zip(*read_by_hand([folder / "test_batch.bin"], 1), strict=True))
    known = [(renamed(label), image) for label, image in test if renamed(label) >= 0]
    foreign = [(-2, image) for label, image in test if renamed(label) < 0]
    assert_equals(dataset.test, tuple(map(list, zip(*known, strict=True))))
    assert_equals(dataset.foreign_test, tuple(map(list, zip(*foreign, strict=True))))
    assert (dataset.mean, dataset.std) == (closed.mean, closed.std)
    split = make_split(dataset, labels=6, seed=0)
    assert sorted(dataset.train.labels[split.labeled].tolist()) == list(range(6))
    assert len(split.unlabeled) == len(dataset.train)


def test_cifar100_binary_has_the_fine_labels_and_the_names_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    write_cifar100_binary(folder)
    dataset = load_dataset("cifar100", tmp_path)
    assert_equals(dataset.train, read_by_hand([folder / "train.bin"], 2))
    assert_equals(dataset.test, read_by_hand([folder / "test.bin"], 2))
    assert len(set(dataset.class_names)) == 100
    assert [dataset.class_names[label] for label in (0, 8, 99)] == ["apple", "bicycle", "worm"]
    (folder / "fine_label_names.txt").write_text("".join(f"class{number}\n" for number in range(100)) + "\n")
    assert load_dataset("cifar100", tmp_path).class_names[7] == "class7"


def test_the_python_version_equals_the_binary_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10_binary(tmp_path / "binary" / "cifar-10-batches-bin")
    batches = {
        name: {"data": pixel_bytes(seed), "labels": [(seed + row) % 10 for row in range(ROWS)]}
        for seed, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"])
    }
    contents = batches | {"batches.meta": {"label_names": TEN.split()}}
    write_pickles(tmp_path / "python", datasets.CIFAR10, contents, monkeypatch)
    expected = load_dataset("cifar10", tmp_path / "binary")
    for root in (tmp_path / "python", tmp_path / "python" / "cifar-10-batches-py"):
        dataset = load_dataset("cifar10", root)
        assert dataset.class_names == expected.class_names
        for part, other in ((dataset.train, expected.train), (dataset.test, expected.test)):
            assert torch.equal(part.labels, other.labels)
            assert torch.equal(part.images.pixels, other.images.pixels)


def test_cifar100_python_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar100_binary(tmp_path / "binary" / "cifar-100-binary")
    batches = {
        name: {"data": pixel_bytes(seed), "fine_labels": [96 + row for row in range(ROWS)]}
        for seed, name in enumerate(["train", "test"])
    }
    contents = batches | {"meta": {"fine_label_names": [str(number) for number in range(100)]}}
    write_pickles(tmp_path, datasets.CIFAR100, contents, monkeypatch)
    dataset, expected = load_dataset("cifar100", tmp_path), load_dataset("cifar100", tmp_path / "binary")
    assert torch.equal(dataset.train.images.pixels, expected.train.images.pixels)
    assert torch.equal(dataset.test.labels, expected.test.labels)


class MakesFolder:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_fails_its_checksum_is_never_opened(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, _ in [*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]:
        (folder / name).write_bytes(pickle.dumps(MakesFolder(tmp_path / "opened")))
    with pytest.raises(NPMatchError, match=r"missing or damaged; put there cifar-10-batches-bin/ or cifar-10-"):
        load_dataset("cifar10", tmp_path)
    assert not (tmp_path / "opened").exists()


def test_damaged_binary_files(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar10_binary(folder)
    good = (folder / "data_batch_3.bin").read_bytes()
    for content, message in (
        (good[:-1], r"data_batch_3.bin: 12291 bytes are not a whole number of records of 3073 bytes"),
        (b"", r"data_batch_3.bin: 0 bytes"),
        (b"\x0a" + good[1:], r"data_batch_3.bin: label 10, where 9 is the largest"),
    ):
        (folder / "data_batch_3.bin").write_bytes(content)
        with pytest.raises(NPMatchError, match=message):
            load_dataset("cifar10", tmp_path)
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(NPMatchError, match=r"data_batch_3.bin: no such file"):
        load_dataset("cifar10", tmp_path)


@pytest.mark.slow
def test_the_real_cifar10() -> None:
    root = os.environ.get("NPMATCH_DATA")
    if root is None or not (Path(root) / "cifar-10-batches-bin").is_dir():
        pytest.skip("set NPMATCH_DATA to a folder that holds cifar-10-batches-bin/")
    dataset = load_dataset("cifar10")
    assert (len(dataset.train), len(dataset.test)) == (50_000, 10_000)
    assert torch.bincount(dataset.train.labels).tolist() == [5_000] * 10
    assert torch.bincount(dataset.test.labels).tolist() == [1_000] * 10
    assert dataset.class_names == tuple(TEN.split())
    pixels = dataset.train.images.pixels.double() / 255
    assert torch.allclose(pixels.mean((0, 2, 3)), torch.tensor(dataset.mean).double(), atol=1e-4)
    assert torch.allclose(pixels.std((0, 2, 3)), torch.tensor(dataset.std).double(), atol=1e-4)
