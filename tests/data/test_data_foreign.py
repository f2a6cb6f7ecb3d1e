"""Foreign images: how many are mixed in, which ones, and that training cannot distinguish them."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from npmatch.data import (
    ArrayImages,
    Dataset,
    FileImages,
    ImageSet,
    load_configured,
    load_dataset,
    make_split,
    mix_foreign,
)
from npmatch.data.config import DataConfig
from npmatch.data.fingerprint import dataset_fingerprint
from npmatch.errors import NPMatchError
from npmatch.runs.folder import RunFolder
from npmatch.training import load_tensors
from tiny import train_tiny

AddSource = Callable[[str, Dataset], str]


def noise(count: int, shape: tuple[int, int, int] = (3, 8, 8), name: str = "noise") -> Dataset:
    """A data set of random images of two classes."""
    pixels = torch.randint(0, 256, (count, *shape), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    return Dataset(name, ("x", "y"), ImageSet(ArrayImages(pixels), torch.arange(count) % 2), mean=(0.9,), std=(0.9,))


@pytest.fixture
def add_source(monkeypatch: pytest.MonkeyPatch) -> AddSource:
    """A function that makes a data set available to configurations, and returns the name of its source."""

    def add(name: str, dataset: Dataset) -> str:
        module = types.ModuleType(name)
        module.load = lambda root: dataset
        monkeypatch.setitem(sys.modules, name, module)
        return f"{name}:load"

    return add


def as_set(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


@pytest.mark.parametrize(("share", "count"), [(0.25, 20), (0.5, 60), (0.1, 7), (0.001, 0)])
def test_the_share_the_label_and_the_position_of_foreign_images(
    memory_dataset: Dataset, share: float, count: int
) -> None:
    foreign = noise(90)
    mixed = mix_foreign(memory_dataset, foreign, share)
    own = memory_dataset.train
    assert len(mixed.train) == len(mixed.train.images) == 60 + count
    assert abs(count / len(mixed.train) - share) < 0.01
    assert torch.equal(mixed.train.images.pixels[:60], own.images.pixels)
    assert torch.equal(mixed.train.labels[:60], own.labels)
    assert mixed.train.labels[60:].tolist() == [-2] * count
    taken = as_set(mixed.train.images.pixels[60:])
    assert len(taken) == count  # no image twice
    assert taken <= as_set(foreign.train.images.pixels)
    kept = ("name", "class_names", "test", "mean", "std")
    assert all(getattr(mixed, field) == getattr(memory_dataset, field) for field in kept)
    assert len(memory_dataset.train) == 60  # unchanged


def test_all_runs_draw_the_same_images_and_a_larger_share_contains_a_smaller(memory_dataset: Dataset) -> None:
    half, again, third = (mix_foreign(memory_dataset, noise(90), share) for share in (0.5, 0.5, 0.3))
    assert torch.equal(half.train.images.pixels, again.train.images.pixels)
    assert dataset_fingerprint(half) == dataset_fingerprint(again) != dataset_fingerprint(third)
    assert as_set(third.train.images.pixels) < as_set(half.train.images.pixels)


@pytest.mark.parametrize("validation", [0.0, 0.2])
@pytest.mark.parametrize("labels", [9, None])
def test_foreign_images_are_unlabelled_and_the_labelled_images_stay_the_same(
    memory_dataset: Dataset, labels: int | None, validation: float
) -> None:
    mixed = mix_foreign(memory_dataset, noise(90), 0.5)
    before, after = (make_split(dataset, labels, 3, validation) for dataset in (memory_dataset, mixed))
    assert torch.equal(before.labeled, after.labeled)
    assert torch.equal(before.validation, after.validation)
    assert after.unlabeled.tolist() == before.unlabeled.tolist() + list(range(60, 120))


def test_files_and_memory_give_the_same_images(memory_dataset: Dataset, file_dataset: Dataset) -> None:
    foreign = noise(90)
    expected = mix_foreign(memory_dataset, foreign, 0.4).train.images.pixels
    mixed = mix_foreign(file_dataset, foreign, 0.4)
    assert isinstance(file_dataset.train.images, FileImages)
    order = torch.randperm(len(mixed.train), generator=torch.Generator().manual_seed(0))
    assert torch.equal(mixed.train.images.take(order), expected[order])
    assert mixed.train.images.take(order[:0]).shape == (0, 3, 8, 8)
    assert mixed.train.names[:60] == file_dataset.train.names
    assert len(set(mixed.train.names)) == len(mixed.train)
    assert all(name.startswith("noise/") for name in mixed.train.names[60:])
    assert mix_foreign(foreign, file_dataset, 0.4).train.names == []  # if the data set itself has no names


def test_from_a_configuration(add_source: AddSource, tmp_path: Path, write_image: Callable[..., object]) -> None:
    foreign = add_source("noisy", noise(2000, (1, 8, 8)))
    config = DataConfig(foreign=foreign, foreign_share=0.5)
    assert (load_configured(config).train.labels == -2).float().mean() == 0.5
    for without in (DataConfig(), DataConfig(foreign="no-such-source")):  # without a share nothing is mixed in
        assert dataset_fingerprint(load_configured(without)) == dataset_fingerprint(load_dataset("digits"))
    # Pictures in a folder are scaled to the size of the other images.
    for name in ("labeled/a/1.png", "labeled/b/2.png", "unlabeled/3.png"):
        write_image(tmp_path / name, width=20, height=20, seed=len(name) + int(name[-5]))
    coloured = add_source("coloured", noise(3))
    mixed = load_configured(
        DataConfig(source=coloured, foreign="folder", foreign_root=str(tmp_path), foreign_share=0.5)
    )
    assert mixed.train.images.take(torch.arange(6)).shape == (6, 3, 8, 8)
    assert mixed.train.labels.tolist() == [0, 1, 0, -2, -2, -2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"foreign_share": 1.0}, r"data\.foreign_share=1\.0: give a share of at least 0 and below 1"),
        ({"foreign_share": -0.1}, r"data\.foreign_share=-0\.1: give a share"),
        ({"foreign": None}, r"data\.foreign_share=0\.5: name their source as well"),
        (
            {"foreign_share": 0.8},
            r"data\.foreign_share=0\.8: takes 5748 images of noise, which has 3000; give 0\.676 or",
        ),
        ({"foreign": "digits"}, r"data\.foreign: the images of digits are those of digits; .*data\.foreign_root"),
        ({"foreign": "coloured:load"}, r"of noise are 3×8×8 \(C H W\), those of digits 1×8×8 \(C H W\); choose"),
        ({"foreign": "larger:load"}, r"of noise are 1×9×9"),
        ({"foreign": "svnh"}, r"did you mean 'svhn'"),
        ({"foreign": "mnist", "foreign_root": "/none"}, r"data\.foreign=mnist, .*data\.foreign_root: /none: no such"),
    ],
)
def test_sources_that_cannot_be_mixed_in(changes: dict[str, object], message: str, add_source: AddSource) -> None:
    for name, dataset in (
        ("noisy", noise(3000, (1, 8, 8))), ("coloured", noise(3000)), ("larger", noise(3000, (1, 9, 9)))
    ):  # fmt: skip
        add_source(name, dataset)
    config = dataclasses.replace(DataConfig(foreign="noisy:load", foreign_share=0.5), **changes)
    with pytest.raises(NPMatchError, match=message) as caught:
        load_configured(config)
    assert "\n" not in str(caught.value)


def test_training_cannot_distinguish_foreign_from_unlabelled_images(
    add_source: AddSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels −1 in place of −2 leave weights and log bit-identical, except for the metrics about foreign images."""
    foreign = add_source("noisy", noise(400, (1, 8, 8)))
    settings = {"data__foreign": foreign, "data__foreign_share": 0.2}
    marked = train_tiny(tmp_path / "marked", **settings)

    def load_without_marks(config: DataConfig, listing: object) -> Dataset:
        dataset = load_configured(config)
        labels = dataset.train.labels.masked_fill(dataset.train.labels == -2, -1)
        return dataclasses.replace(dataset, train=dataclasses.replace(dataset.train, labels=labels))

    monkeypatch.setattr("npmatch.runs.fit.load_configured", load_without_marks)
    unmarked = train_tiny(tmp_path / "unmarked", **settings)
    assert (marked.folder / "model.safetensors").read_bytes() == (unmarked.folder / "model.safetensors").read_bytes()
    weights, others = (load_tensors(max((run.folder / "checkpoints").iterdir()))[0] for run in (marked, unmarked))
    assert all(torch.equal(weights[name], others[name]) for name in others)
    assert {name for name in weights if name not in others} == {"meter/foreign", "meter/foreign_kept"}

    def log(folder: Path, *without: str) -> list[dict[str, object]]:
        clocks = ("seconds", "images_per_second")
        return [{k: v for k, v in line.items() if k not in (*clocks, *without)} for line in RunFolder(folder).records()]

    lines = [line for line in log(marked.folder) if line["kind"] == "train"]
    assert all({"foreign_trusted", "trusted_is_foreign"} <= line.keys() for line in lines)
    assert any(0 < line["foreign_trusted"] < 1 for line in lines)  # foreign images were in use
    assert log(marked.folder, "foreign_trusted", "trusted_is_foreign") == log(unmarked.folder)
    assert json.loads((marked.folder / "split.json").read_text())["counts"]["unlabeled"] == 1437 + 359
