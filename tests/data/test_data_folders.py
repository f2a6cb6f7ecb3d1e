"""Image folders and ImageNet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from npmatch.data import load_dataset
from npmatch.data.sources.folders import list_folder
from npmatch.errors import NPMatchError

WriteImage = Callable[..., np.ndarray]


@pytest.fixture
def folder(tmp_path: Path, write_image: WriteImage) -> Path:
    for seed, name in enumerate(
        [
            "labeled/dog/b.png",
            "labeled/dog/a.PNG",
            "labeled/cat/z.Jpg",
            "labeled/cat/.hidden.png",
            "labeled/.cache/x.png",
            "unlabeled/9.png",
            "unlabeled/deep/er/1.bmp",
            "unlabeled/deep/2.tiff",
            "unlabeled/.thumbnails/3.png",
            "test/dog/t.png",
        ]
    ):
        write_image(tmp_path / name, seed, width=12, height=8)
    (tmp_path / "labeled/cat/notes.txt").write_text("not an image")
    (tmp_path / "labeled/readme.png").write_text("not in a class folder")
    (tmp_path / "unlabeled/Thumbs.db").write_text("not an image")
    return tmp_path


def test_a_folder(folder: Path) -> None:
    dataset = load_dataset("folder", folder)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.names == [
        "labeled/cat/z.Jpg",
        "labeled/dog/a.PNG",
        "labeled/dog/b.png",
        "unlabeled/9.png",
        "unlabeled/deep/2.tiff",
        "unlabeled/deep/er/1.bmp",
    ]
    assert dataset.train.labels.tolist() == [0, 1, 1, -1, -1, -1]
    assert dataset.test.names == ["test/dog/t.png"]
    assert dataset.test.labels.tolist() == [1]
    assert dataset.train.images.shape == (3, 64, 64)
    assert len(dataset.mean) == len(dataset.std) == 3


def test_images_are_scaled_to_the_requested_size(folder: Path) -> None:
    dataset = load_dataset("folder", folder, image_size=8)
    with Image.open(folder / "labeled/dog/b.png") as image:
        expected = np.asarray(image)[:, 2:10]  # 12 × 8, so the middle needs no scaling
    assert np.array_equal(dataset.train.images.take(torch.tensor([2]))[0].permute(1, 2, 0), expected)


def test_test_and_unlabeled_may_be_missing(folder: Path) -> None:
    (folder / "test").rename(folder / "elsewhere")
    (folder / "unlabeled").rename(folder / "else")
    dataset = load_dataset("folder", folder)
    assert dataset.test is None
    assert dataset.train.labels.tolist() == [0, 1, 1]


def test_a_relative_folder_and_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    absolute = load_dataset("folder", folder, image_size=8)
    monkeypatch.setenv("NPMATCH_DATA", folder.name)
    relative = load_dataset("folder", image_size=8)
    assert relative.train.names == absolute.train.names
    index = torch.arange(6)
    assert torch.equal(relative.train.images.take(index), absolute.train.images.take(index))


def error_for(folder: Path, source: str = "folder") -> str:
    with pytest.raises(NPMatchError) as caught:
        load_dataset(source, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_errors_name_the_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert f"{folder / 'none'}: no such file or folder" in error_for(folder / "none")
    (folder / "list.txt").write_text("")
    assert f"{folder / 'list.txt'}: a file; give --data DIR" in error_for(folder / "list.txt")
    assert f"{folder / 'list.txt'}: a file; give --data DIR" in error_for(folder / "list.txt", "cifar10")
    empty = tmp_path_factory.mktemp("empty")
    assert f"{empty / 'labeled'}: no such folder" in error_for(empty)
    (empty / "labeled").mkdir()
    assert f"{empty / 'labeled'}: no class folder" in error_for(empty)
    (empty / "labeled" / "cat").mkdir()
    assert "'cat' is the only class folder" in error_for(empty)

    (folder / "test" / "cow").mkdir()
    assert f"{folder / 'test' / 'cow'}: a class that has no training folder" in error_for(folder)
    (folder / "test" / "cow").rmdir()
    (folder / "labeled" / "cow").mkdir()
    (folder / "labeled" / "cow" / "notes.txt").touch()
    assert f"{folder / 'labeled' / 'cow'}: no image in this class folder" in error_for(folder)


def test_a_class_name_that_is_not_utf8_is_refused(folder: Path) -> None:
    (folder / "labeled" / "dog").rename(folder / "labeled" / os.fsdecode(b"d\xf6g"))
    (folder / "test" / "dog").rename(folder / "test" / os.fsdecode(b"d\xf6g"))
    assert "is not UTF-8; rename it" in error_for(folder)


def test_pictures_in_unread_formats_are_distinguished_from_other_files(folder: Path) -> None:
    for name in ("cat/1.HEIC", "cat/2.avif", "cat/list.csv", "dog/3.jfif"):
        (folder / "labeled" / name).touch()
    listing = list_folder(folder)
    assert listing.remarks["unread-format"] == ["labeled/cat/1.HEIC", "labeled/cat/2.avif"]
    assert "labeled/cat/list.csv" in listing.remarks["other-file"]
    assert "labeled/dog/3.jfif" in [file.name for file in listing.files]


def test_class_folders_directly_under_the_root_are_an_error_with_a_remedy(folder: Path) -> None:
    for name in ("cat", "dog"):
        (folder / "labeled" / name).rename(folder / name)
    assert "no class folder" in error_for(folder)
    shutil.rmtree(folder / "labeled")
    message = error_for(folder)
    assert f"{folder / 'labeled'}: no such folder" in message
    assert "move the class folders into it, if 'cat' is one" in message


def test_a_misspelt_folder_is_an_error(folder: Path) -> None:
    (folder / "unlabeled").rename(folder / "unlabelled")
    assert "rename this folder to 'unlabeled'" in error_for(folder)
    (folder / "unlabelled").rename(folder / "Unlabeled")
    assert "Unlabeled: rename this folder to 'unlabeled'" in error_for(folder)


def test_images_beside_the_three_folders_are_reported(folder: Path) -> None:
    (folder / "notes").mkdir()
    (folder / "notes" / "todo.txt").touch()
    (folder / "loose.jpg").touch()
    (folder / "unlabeled" / "deep").rename(folder / "val")
    listing = list_folder(folder)
    assert not listing.faults
    assert listing.remarks["unused-folder"] == ["val"]
    assert "loose.jpg" in listing.remarks["no-class-folder"]


def test_a_class_folder_may_be_a_link(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    real = tmp_path_factory.mktemp("real") / "cow"
    os.rename(folder / "labeled" / "dog", real)
    (folder / "labeled" / "dog").symlink_to(real, target_is_directory=True)
    assert load_dataset("folder", folder).train.labels.tolist() == [0, 1, 1, -1, -1, -1]


def test_imagenet(tmp_path: Path) -> None:
    for value, name in enumerate(["train/n02", "train/n01", "val/n01", "val/n02"]):
        (tmp_path / name).mkdir(parents=True)
        for number in range(2):
            color = (40 * value, 0, 100 * number)
            Image.new("RGB", (30, 20), color).save(tmp_path / name / f"{name[-3:]}_{number}.JPEG", quality=95)
    dataset = load_dataset("imagenet", tmp_path, image_size=16)
    assert dataset.class_names == ("n01", "n02")
    assert dataset.train.labels.tolist() == dataset.test.labels.tolist() == [0, 0, 1, 1]
    assert dataset.test.names[2] == "val/n02/n02_0.JPEG"
    colors = dataset.train.images.take(torch.arange(4)).float().mean((2, 3))
    expected = torch.tensor([[40.0, 0, 0], [40, 0, 100], [0, 0, 0], [0, 0, 100]])
    assert (colors - expected).abs().max() < 3
    assert load_dataset("imagenet", tmp_path).train.images.shape == (3, 256, 256)


def test_imagenet_needs_class_folders_in_val(tmp_path: Path, write_image: WriteImage) -> None:
    for name in ("train/n01/a.png", "train/n02/a.png", "val/a.png"):
        write_image(tmp_path / name)
    assert f"{tmp_path / 'val'}: no class folder" in error_for(tmp_path, "imagenet")


@pytest.mark.parametrize("name", ["", "labeled", "labeled/cat", "unlabeled", "test", "test/dog"])
def test_a_part_that_cannot_be_read_is_a_fault(folder: Path, forbid: Callable[[Path], None], name: str) -> None:
    forbid(folder / name)
    with pytest.raises(
        NPMatchError, match=r"a folder that cannot be read \(Permission denied\); change its permissions"
    ):
        load_dataset("folder", folder)


def test_a_folder_inside_that_cannot_be_read_is_a_remark(folder: Path, forbid: Callable[[Path], None]) -> None:
    forbid(folder / "unlabeled" / "deep")
    listing = list_folder(folder)
    assert not listing.faults
    assert listing.remarks["unreadable-folder"] == ["unlabeled/deep"]


@pytest.fixture
def with_table(tmp_path: Path, write_image: WriteImage) -> Path:
    for seed, name in enumerate(["a.png", "deep/b.png", "c.png", "d.png", "test/cat/t.png"]):
        write_image(tmp_path / name, seed, width=12, height=8)
    (tmp_path / "labels.csv").write_text("path,label\na.png,dog\ndeep/b.png,cat\nc.png,\n")
    return tmp_path


def test_a_flat_folder_with_a_table_of_labels(with_table: Path) -> None:
    dataset = load_dataset("folder", with_table)
    assert dataset.class_names == ("cat", "dog")
    assert dict(zip(dataset.train.names, dataset.train.labels.tolist(), strict=True)) == {
        "a.png": 1,
        "c.png": -1,
        "d.png": -1,
        "deep/b.png": 0,
    }
    assert dataset.test.names == ["test/cat/t.png"]


def test_a_table_labels_images_beside_class_folders(folder: Path) -> None:
    (folder / "labels.csv").write_text("path,label\nunlabeled/9.png,frog\nunlabeled/deep/2.tiff,cat\n")
    dataset = load_dataset("folder", folder)
    assert dataset.class_names == ("cat", "dog", "frog")
    labels = dict(zip(dataset.train.names, dataset.train.labels.tolist(), strict=True))
    assert (labels["unlabeled/9.png"], labels["unlabeled/deep/2.tiff"], labels["unlabeled/deep/er/1.bmp"]) == (2, 0, -1)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a.png,cat", "has the label 'dog' too"),
        ("none.png,cat", "none.png: no such file"),
        ("test/cat/t.png,cat", "is a test image"),
        (",cat", "no path"),
    ],
)
def test_a_row_that_does_not_fit_is_named(with_table: Path, row: str, problem: str) -> None:
    with (with_table / "labels.csv").open("a") as table:
        table.write(row + "\n")
    with pytest.raises(NPMatchError, match=problem):
        load_dataset("folder", with_table)


def test_a_table_of_one_class_is_not_enough(with_table: Path) -> None:
    (with_table / "labels.csv").write_text("path,label\na.png,dog\n")
    with pytest.raises(NPMatchError, match="label images of two or more"):
        load_dataset("folder", with_table)


def test_a_table_against_a_class_folder_is_an_error(folder: Path) -> None:
    (folder / "labels.csv").write_text("path,label\nlabeled/cat/z.Jpg,dog\n")
    with pytest.raises(NPMatchError, match="lies in the folder of 'cat'"):
        load_dataset("folder", folder)
