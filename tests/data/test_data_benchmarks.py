"""Digits against scikit-learn; small versions of STL-10 and SVHN in their published formats."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from sklearn.datasets import load_digits
from torchvision import datasets

from npmatch.data import load_dataset
from npmatch.data.sources.benchmarks import _digits
from npmatch.errors import NPMatchError


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_digits_are_those_of_scikit_learn() -> None:
    dataset = load_dataset("digits")
    assert (len(dataset.train), len(dataset.test)) == (1437, 360)
    assert dataset.class_names == tuple("0123456789")
    pixels = torch.cat([dataset.train.images.pixels, dataset.test.images.pixels])
    labels = torch.cat([dataset.train.labels, dataset.test.labels])
    assert pixels.shape == (1797, 1, 8, 8)
    assert pixels.unique().tolist() == [*range(0, 256, 16), 255]
    # The same images with the same labels, whatever their order.
    levels = pixels[:, 0].to(torch.int64).add(15).div(16, rounding_mode="floor").flatten(1)
    ours = sorted(map(tuple, torch.cat([levels, labels[:, None]], 1).tolist()))
    published = load_digits()
    theirs = np.concatenate([published.data, published.target[:, None]], 1).astype(int)
    assert ours == sorted(map(tuple, theirs.tolist()))


def test_digits_split_is_stratified_fixed_and_disjoint_and_its_constants_are_right() -> None:
    first = load_dataset("digits")
    _digits.cache_clear()  # parse and split them again
    assert torch.equal(first.train.images.pixels, load_dataset("digits").train.images.pixels)
    share = torch.bincount(first.test.labels) / torch.bincount(first.train.labels)
    assert (share - 360 / 1437).abs().max() < 0.01
    pixels = first.train.images.pixels.double() / 255
    assert abs(pixels.mean() - first.mean[0]) < 1e-4
    assert abs(pixels.std() - first.std[0]) < 2e-4


def test_changed_digits_are_nobody_elses() -> None:
    changed, other = load_dataset("digits"), load_dataset("digits")
    changed.train.images.pixels.zero_()
    changed.train.labels.zero_()
    for dataset in (other, load_dataset("digits")):
        assert dataset.train.images.pixels.any()
        assert dataset.train.labels.any()


def test_stl10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    images = {name: rng.integers(0, 256, (n, 3, 96, 96), dtype=np.uint8) for name, n in
              (("train", 4), ("unlabeled", 5), ("test", 3))}  # fmt: skip
    for name, pixels in images.items():
        pixels.swapaxes(2, 3).tofile(folder / f"{name}_X.bin")  # the files hold columns, not rows
    np.array([1, 10, 3, 3], dtype=np.uint8).tofile(folder / "train_y.bin")  # counted from 1
    np.array([2, 2, 9], dtype=np.uint8).tofile(folder / "test_y.bin")
    for attribute in ("train_list", "test_list"):
        files = [[name, md5(folder / name)] for name, _ in getattr(datasets.STL10, attribute)]
        monkeypatch.setattr(datasets.STL10, attribute, files)

    dataset = load_dataset("stl10", tmp_path)
    assert dataset.train.labels.tolist() == [0, 9, 2, 2, -1, -1, -1, -1, -1]
    assert dataset.train.labels.dtype == torch.int64
    expected = np.concatenate([images["train"], images["unlabeled"]])
    assert np.array_equal(dataset.train.images.pixels.numpy(), expected)
    assert dataset.test.labels.tolist() == [1, 1, 8]
    assert np.array_equal(dataset.test.images.pixels.numpy(), images["test"])
    assert dataset.class_names[0] == "airplane"
    assert dataset.class_names[7] == "monkey"


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    digits = {"train": [1, 9, 0, 5, 0], "test": [0, 2, 3]}
    images = {name: rng.integers(0, 256, (len(y), 3, 32, 32), dtype=np.uint8) for name, y in digits.items()}
    files = dict(datasets.SVHN.split_list)
    for name, y in digits.items():
        path = tmp_path / f"{name}_32x32.mat"
        labels = np.array([[digit or 10] for digit in y], dtype=np.uint8)  # the files have label 10 for zero
        scipy.io.savemat(path, {"X": images[name].transpose(2, 3, 1, 0), "y": labels})
        files[name] = [files[name][0], path.name, md5(path)]
    monkeypatch.setattr(datasets.SVHN, "split_list", files)

    dataset = load_dataset("svhn", tmp_path)
    assert dataset.class_names == tuple("0123456789")
    for name, part in (("train", dataset.train), ("test", dataset.test)):
        assert part.labels.tolist() == digits[name]
        assert np.array_equal(part.images.pixels.numpy(), images[name])


@pytest.mark.parametrize(
    ("source", "file"),
    [("stl10", "stl10_binary"), ("svhn", "train_32x32.mat"), ("cifar100", "cifar-100-binary")],
)
def test_missing_files_are_named(source: str, file: str, tmp_path: Path) -> None:
    with pytest.raises(NPMatchError, match=f"missing or damaged; put there .*{file}.* from http"):
        load_dataset(source, tmp_path)
