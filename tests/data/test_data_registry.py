"""Choosing a source by name, and a user's own function."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from npmatch.data import SOURCES, ArrayImages, Dataset, ImageSet, load_dataset
from npmatch.data.sources import mnist
from npmatch.errors import NoSuchChoiceError, NPMatchError


def test_an_unknown_source_suggests_the_nearest() -> None:
    with pytest.raises(NoSuchChoiceError, match=r"unknown data source 'cifar-10'; did you mean 'cifar10'\?"):
        load_dataset("cifar-10", Path("/"))


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "digits"])
def test_without_a_root_the_error_names_the_expected_files(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPMATCH_DATA", raising=False)
    monkeypatch.setattr(mnist, "DEBIAN_FOLDER", Path("/not/installed"))
    with pytest.raises(NPMatchError, match=r"pass --data DIR or set NPMATCH_DATA; expected there: \w"):
        load_dataset(source)


def test_a_fixed_size_cannot_be_changed() -> None:
    assert load_dataset("digits", image_size=8).train.images.shape == (1, 8, 8)
    with pytest.raises(NPMatchError, match="image_size=16: the images of digits are 8 pixels wide"):
        load_dataset("digits", image_size=16)
    with pytest.raises(NPMatchError, match="image_size=0: give the side in pixels"):
        load_dataset("folder", Path("/"), image_size=0)


@pytest.fixture
def own_source(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path | None], object]], str]:
    """A function that puts a user's function into a module, and returns its name for the command line."""

    def install(function: Callable[[Path | None], object]) -> str:
        module = types.ModuleType("my_own_data")
        module.load = function
        monkeypatch.setitem(sys.modules, "my_own_data", module)
        return "my_own_data:load"

    return install


def make(
    pixels: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    names: tuple[str, ...] = ("a", "b"),
) -> Dataset:
    pixels = torch.zeros(3, 3, 4, 4, dtype=torch.uint8) if pixels is None else pixels
    labels = torch.tensor([0, 1, -1]) if labels is None else labels
    return Dataset("mine", names, ImageSet(ArrayImages(pixels), labels))


def test_a_users_function_gets_the_root(own_source: Callable[..., str], tmp_path: Path) -> None:
    roots = []

    def load(root: Path | None) -> Dataset:
        roots.append(root)
        return make()

    name = own_source(load)
    assert load_dataset(name, tmp_path).name == "mine"
    assert roots == [tmp_path]
    with pytest.raises(NPMatchError, match="has no 'lod'"):
        load_dataset("my_own_data:lod", tmp_path)
    with pytest.raises(NPMatchError, match="no module named 'my_other_data'"):
        load_dataset("my_other_data:load", tmp_path)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda root: [1, 2], "returned list, but must return an npmatch.Dataset"),
        (lambda root: make(labels=torch.tensor([0.0, 1, -1])), "labels must be int64"),
        (lambda root: make(labels=torch.tensor([0, 1])), "3 images and 2 labels"),
        (lambda root: make(labels=torch.tensor([0, 1, 2])), "labels from 0 to 2; valid are 0 to 1, and −1"),
        (lambda root: make(labels=torch.tensor([0, 1, -2])), "labels from -2 to 1"),
        (lambda root: make(names=("a",)), "class_names has 1 names"),
        (lambda root: Dataset("mine", ("a", "b"), ImageSet([[0]], torch.tensor([0]))), "N C H W .*, not list"),
        (lambda root: make(torch.zeros(3, 4, 4, dtype=torch.uint8)), "uint8 of 4 dimensions"),
        (lambda root: make(torch.zeros(3, 1, 4, 6, dtype=torch.uint8)), "images of 4×6 pixels must be square"),
    ],
)
def test_a_users_function_is_checked(load: Callable[..., object], message: str, own_source: Callable[..., str]) -> None:
    with pytest.raises(NPMatchError, match=message):
        load_dataset(own_source(load))


def test_test_images_and_constants_are_checked_too(own_source: Callable[..., str]) -> None:
    dataset = make()
    dataset.test = make(torch.zeros(3, 3, 5, 5, dtype=torch.uint8)).train
    with pytest.raises(NPMatchError, match="differ in their shape"):
        load_dataset(own_source(lambda root: dataset))
    dataset.test, dataset.foreign_test = None, dataset.test
    with pytest.raises(NPMatchError, match="differ in their shape"):
        load_dataset(own_source(lambda root: dataset))
    dataset.foreign_test, dataset.mean = None, (0.5, 0.5)
    with pytest.raises(NPMatchError, match="mean has 2 values"):
        load_dataset(own_source(lambda root: dataset))
    dataset.mean, dataset.train.names = (0.5,) * 3, ["one"]
    with pytest.raises(NPMatchError, match="1 names for 3 images"):
        load_dataset(own_source(lambda root: dataset))


@pytest.mark.parametrize("kind", [torch.Tensor, np.ndarray])
def test_a_user_may_return_arrays(kind: type, own_source: Callable[..., str]) -> None:
    pixels, labels = torch.randint(256, (4, 1, 5, 5)).byte(), torch.tensor([0, 1, -1, 0])
    parts = [(pixels[:2], labels[:2]), (pixels[2:], labels[2:])]
    if kind is np.ndarray:
        parts = [(images.numpy(), known.numpy()) for images, known in parts]
    dataset = load_dataset(own_source(lambda root: Dataset("mine", ("a", "b"), *(ImageSet(*part) for part in parts))))
    assert dataset.train.images.shape == dataset.test.images.shape == (1, 5, 5)
    assert torch.equal(dataset.train.images.take(torch.tensor([1, 0])), pixels[[1, 0]])
    assert dataset.test.labels.tolist() == [-1, 0]
