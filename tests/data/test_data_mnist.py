"""Small versions of MNIST and Fashion-MNIST in the IDX format, read back; and the real Fashion-MNIST if installed."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from npmatch.data import ImageSet, load_dataset
from npmatch.data.sources import mnist
from npmatch.errors import NPMatchError

CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
LABELS = {"train": [9, 0, 0, 3, 0], "t10k": [9, 2, 1]}


def pixels_of(part: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, len(part)]).integers(0, 256, (len(LABELS[part]), 28, 28), dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    """The format as it is published: two zero bytes, 8 for unsigned bytes, the dimensions, their sizes, the data."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write(folder: Path, zipped: bool = True, seed: int = 0) -> Path:
    """Writes the four files of a data set."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, labels in LABELS.items():
        arrays = {"images-idx3": pixels_of(part, seed), "labels-idx1": np.array(labels, dtype=np.uint8)}
        for kind, array in arrays.items():
            name = f"{part}-{kind}-ubyte"
            (folder / (f"{name}.gz" if zipped else name)).write_bytes(
                gzip.compress(idx(array)) if zipped else idx(array)
            )
    return folder


def assert_equals(part: ImageSet, name: str, seed: int = 0) -> None:
    assert part.labels.tolist() == LABELS[name]
    assert part.labels.dtype == torch.int64
    assert part.images.shape == (1, 28, 28)
    assert np.array_equal(part.images.take(torch.arange(len(part)))[:, 0].numpy(), pixels_of(name, seed))


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A system that has neither $NPMATCH_DATA nor Debian's package."""
    monkeypatch.delenv("NPMATCH_DATA", raising=False)
    monkeypatch.setattr(mnist, "DEBIAN_FOLDER", tmp_path / "not installed")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("source", "folder", "classes"),
    [
        ("fashion-mnist", ".", CLOTHES),
        ("fashion-mnist", "FashionMNIST/raw", CLOTHES),
        ("fashion-mnist", "fashion-mnist", CLOTHES),
        ("mnist", ".", tuple("0123456789")),
        ("mnist", "MNIST/raw", tuple("0123456789")),
        ("mnist", "mnist", tuple("0123456789")),
    ],
)
def test_both_data_sets_plain_and_gzipped(
    source: str, folder: str, classes: tuple[str, ...], zipped: bool, tmp_path: Path
) -> None:
    write(tmp_path / folder, zipped)
    dataset = load_dataset(source, tmp_path)
    assert (dataset.name, dataset.class_names) == (source, classes)
    assert_equals(dataset.train, "train")
    assert_equals(dataset.test, "t10k")


def test_torchvision_reads_the_same(tmp_path: Path) -> None:
    from torchvision import datasets

    write(tmp_path / "FashionMNIST" / "raw", zipped=False)
    theirs = datasets.FashionMNIST(tmp_path, train=True)
    ours = load_dataset("fashion-mnist", tmp_path).train
    assert torch.equal(theirs.data, ours.images.pixels[:, 0])
    assert torch.equal(theirs.targets, ours.labels)


def test_both_data_sets_under_one_root(tmp_path: Path) -> None:
    write(tmp_path / "FashionMNIST" / "raw", seed=1)
    write(tmp_path / "MNIST" / "raw", seed=2)
    assert_equals(load_dataset("fashion-mnist", tmp_path).train, "train", seed=1)
    assert_equals(load_dataset("mnist", tmp_path).train, "train", seed=2)


def test_where_fashion_mnist_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_package: None) -> None:
    with pytest.raises(NPMatchError, match=r"pass --data DIR .* or apt-get install dataset-fashion-mnist"):
        load_dataset("fashion-mnist")
    monkeypatch.setattr(mnist, "DEBIAN_FOLDER", write(tmp_path / "debian", seed=1))
    assert_equals(load_dataset("fashion-mnist").train, "train", seed=1)
    monkeypatch.setenv("NPMATCH_DATA", str(tmp_path / "other"))
    assert_equals(load_dataset("fashion-mnist").train, "train", seed=1)  # as there is none in $NPMATCH_DATA
    write(tmp_path / "other" / "fashion-mnist", seed=2)
    assert_equals(load_dataset("fashion-mnist").train, "train", seed=2)
    assert_equals(load_dataset("fashion-mnist", write(tmp_path / "given", seed=3)).train, "train", seed=3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        NPMatchError, match=r"empty: no train-images.*--data DIR.*apt-get install dataset-fashion-mnist"
    ):
        load_dataset("fashion-mnist", tmp_path / "empty")  # no other place is tried if a folder was named
    with pytest.raises(NPMatchError, match=r"empty: no train-images.* in MNIST/raw or in mnist; .*--data DIR$"):
        load_dataset("mnist", tmp_path / "empty")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train-images-idx3-ubyte", idx(pixels_of("train"))[:-1], "3919 bytes of data where its header says 5×28×28"),
        ("train-images-idx3-ubyte", idx(pixels_of("train")) + b"\0", "3921 bytes of data where"),
        ("train-images-idx3-ubyte", idx(pixels_of("train"))[:15], "15 bytes, too few for an IDX file"),
        ("train-images-idx3-ubyte", b"", "0 bytes, too few"),
        ("train-images-idx3-ubyte", b"\x89PNG" + bytes(100), "begins with 0x89504e47, not with 0x00000803"),
        ("train-images-idx3-ubyte", idx(pixels_of("train")[:, :14]), "images of 14×28 pixels"),
        ("train-images-idx3-ubyte", idx(pixels_of("train")[:0]), "0 bytes of data where its header says 0×28×28"),
        ("train-labels-idx1-ubyte", idx(pixels_of("train")), "begins with 0x00000803, not with 0x00000801"),
        ("train-labels-idx1-ubyte", idx(np.zeros(4, np.uint8)), "4 labels for the 5 images of train-images-idx3-ubyte"),
        ("t10k-labels-idx1-ubyte", idx(np.array([0, 10, 2], np.uint8)), "label 10, where 9 is the largest"),
    ],
)
def test_damaged_files_are_named(file: str, content: bytes, message: str, zipped: bool, tmp_path: Path) -> None:
    write(tmp_path, zipped)
    path = tmp_path / (f"{file}.gz" if zipped else file)
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(NPMatchError) as caught:
        load_dataset("mnist", tmp_path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_damaged_gzip_files_and_missing_ones_are_named(tmp_path: Path) -> None:
    path = write(tmp_path) / "t10k-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    altered = whole[:40] + bytes(byte ^ 0xFF for byte in whole[40:80]) + whole[80:]
    for content in (whole[:-20], altered, b"<html>not found</html>"):
        path.write_bytes(content)
        with pytest.raises(NPMatchError, match=r"t10k-images-idx3-ubyte\.gz: cannot be read .*download it again"):
            load_dataset("mnist", tmp_path)
    path.unlink()
    with pytest.raises(NPMatchError, match=r"t10k-images-idx3-ubyte: no such file, nor t10k-images-idx3-ubyte\.gz"):
        load_dataset("mnist", tmp_path)


@pytest.mark.slow
def test_the_real_fashion_mnist() -> None:
    if not mnist.DEBIAN_FOLDER.is_dir():
        pytest.skip("apt-get install dataset-fashion-mnist")
    dataset = load_dataset("fashion-mnist", mnist.DEBIAN_FOLDER)
    assert (len(dataset.train), len(dataset.test)) == (60_000, 10_000)
    assert torch.bincount(dataset.train.labels).tolist() == [6_000] * 10
    assert torch.bincount(dataset.test.labels).tolist() == [1_000] * 10
    pixels = dataset.train.images.pixels.double() / 255
    assert abs(pixels.mean() - dataset.mean[0]) < 1e-4
    assert abs(pixels.std() - dataset.std[0]) < 1e-4
    assert dataset.class_names[dataset.train.labels[0]] == "Ankle boot"
