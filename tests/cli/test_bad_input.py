"""What people really pass: each mistake is one line that names it, no traceback, and nothing half-written."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

import npmatch
from few_photos import WORDS, save_photo, save_photos
from npmatch.cli import main
from npmatch.errors import NPMatchError
from npmatch.runs.folder import RunFolder


def only(root, *words):
    """Takes all but some class folders away."""
    for path in (root / "labeled").iterdir():
        if path.name not in words:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def empty_the_class(root):
    for file in (root / "labeled" / "dog").iterdir():
        file.unlink()


FOLDERS = {
    "no labelled folder": (lambda root: os.rename(root / "labeled", root / "classes"), "labeled: no such folder"),
    "a capital": (lambda root: os.rename(root / "labeled", root / "Labeled"), "rename this folder to 'labeled'"),
    "one class alone": (lambda root: only(root, "cat"), "'cat' is the only class folder"),
    "no class at all": (lambda root: only(root), "no class folder"),
    "an empty class": (empty_the_class, "dog: no image in this class folder"),
    "a misspelt folder": (lambda root: (root / "unlabelled").mkdir(), "rename this folder to 'unlabeled'"),
    "an unknown class in test": (lambda root: save_photo(root / "test" / "cow" / "1.png"), "cow: a class that has no"),
}
TABLES = {
    "wrong columns": ("file,class\na.png,cat\n", "the first line names the columns file,class"),
    "nothing": ("", "the first line names the columns (none)"),
    "one class": ("path,label\na.png,cat\nb.png,cat\n", "1 class"),
    "a path twice": ("path,label\na.png,cat\nb.png,dog\n./a.png,dog\n", "line 4: ./a.png is on line 2 too"),
    "no path": ("path,label\na.png,cat\n,dog\n", "line 3: no path"),
    "an odd split": ("path,label,split\na.png,cat,train\nb.png,dog,dev\n", "split 'dev'"),
    "no text": (b"\xff\xfe\x00p\x00a", "not a CSV file in UTF-8"),
}


def assert_one_line(capfd, code, message, expected=2):
    said = capfd.readouterr()
    assert code == expected, said.err
    assert "Traceback" not in said.err + said.out
    assert said.err.startswith("npmatch: ")
    assert said.err.count("\n") == 1
    assert message in said.err


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(tmp_path, capfd, case):
    spoil, message = FOLDERS[case]
    root = save_photos(tmp_path / "photos", classes=("cat", "dog"), test=0)
    spoil(root)
    code = main(["train", "--data", str(root), "--out", str(tmp_path / "run"), "--quiet"])
    assert_one_line(capfd, code, message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", TABLES)
def test_tables(tmp_path, capfd, case):
    content, message = TABLES[case]
    for seed, name in enumerate("ab"):
        save_photo(tmp_path / f"{name}.png", seed)
    table = write(tmp_path / "photos.csv", content)
    code = main(["train", "--data", str(table), "--out", str(tmp_path / "run"), "--quiet"])
    assert_one_line(capfd, code, message)
    assert not (tmp_path / "run").exists()


ODD = ["with space", "Ünïcödé 猫", "-leading-dash", "quo\"tes'", "new\nline", "comma, and; more", "<b>bold", "100%"]


def test_odd_class_names_train_and_come_back_in_predictions(tmp_path, capfd):
    import csv

    root = save_photos(tmp_path / "photos", classes=ODD, labels=1, unlabeled=1, test=0)
    small = ["training.iterations=2", "training.batch=4", "training.unlabeled_ratio=1", "data.image_size=8",
             "backbone.name=cnn", "backbone.width=4", "data.workers=0"]  # fmt: skip
    run = tmp_path / "-run"
    assert main(["train", "--data", str(root), *small, "--out", str(run), "--quiet", "--device", "cpu"]) == 0
    assert npmatch.load(run).class_names == tuple(sorted(ODD))
    out = tmp_path / "out.csv"
    assert main(["predict", str(run), str(root), "-o", str(out), "--device", "cpu"]) == 0
    with open(out, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["label"] for row in rows} <= set(ODD)
    assert {row["path"] for row in rows} == {str(path) for path in root.rglob("*.png")}


def test_a_folder_whose_name_is_not_utf8_holds_a_run_like_any_other(tmp_path, photos, capfd):
    run, copy = (str(tmp_path / os.fsdecode(name)) for name in (b"caf\xe9", b"mod\xe8le"))
    settings = [f"{key}={value}" for key, value in WORDS.items()]
    page = str(tmp_path / "page.html")
    for words in (
        ["train", "--data", str(photos), "--out", run, *settings, "--quiet"],
        ["evaluate", run],
        ["report", run, run, "--out", page],
        ["predict", run, str(photos / "test"), "-o", run + ".csv"],
        ["export", run, "--format", "hub", "-o", copy],
        ["predict", copy, str(photos / "test"), "-o", run + ".csv"],
    ):
        assert main(words) == 0, capfd.readouterr().err
    assert RunFolder(run).read_test_predictions() is not None


def animated(path):
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "green")]
    frames[0].save(path, save_all=True, append_images=frames[1:])


def header_of_a_bomb(path):
    """A PNG whose header promises ten thousand million pixels."""
    buffer = io.BytesIO()
    Image.new("L", (1, 1)).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    content[16:24] = struct.pack(">II", 100_000, 100_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)


def truncated(path):
    save_photo(path)
    path.write_bytes(path.read_bytes()[:-60])


IMAGES = {
    "zero bytes.png": (lambda path: path.write_bytes(b""), "not a readable image"),
    "text.jpg": (lambda path: path.write_bytes(b"I am no picture"), "not a readable image"),
    "truncated.png": (truncated, "not a readable image"),
    "bomb.png": (header_of_a_bomb, "10000000000 pixels"),
    "a pdf under the name of a.png": (lambda path: path.write_bytes(b"%PDF-1.7 " + bytes(99)), "not a readable image"),
    "floats.tiff": (lambda path: Image.new("F", (4, 4), 0.5).save(path), "floating-point"),
    "wrong extension.jpg": (lambda path: save_photo(path, format="PNG"), None),
    "animated.gif": (animated, None),
    "cmyk.jpg": (lambda path: save_photo(path, mode="CMYK"), None),
    "16 bit.png": (lambda path: Image.fromarray(np.full((9, 9), 40_000, np.uint16)).save(path), None),
    "one pixel.png": (lambda path: save_photo(path, size=(1, 1)), None),
    "a strip.png": (lambda path: save_photo(path, size=(900, 1)), None),
}


def test_images_of_every_kind_are_predicted_or_named(tiny_run, tmp_path, capfd):
    import json

    place = tmp_path / "pictures"
    place.mkdir()
    for name, (make, _) in IMAGES.items():
        path = place / (name if "." in name else f"{name}.png")
        make(path)
    out = tmp_path / "out.jsonl"
    assert main(["predict", str(tiny_run.folder), str(place), "-o", str(out), "--device", "cpu"]) == 1
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    predicted = {os.path.basename(json.loads(line)["path"]) for line in out.read_text().splitlines()}
    assert predicted == {name for name, (_, message) in IMAGES.items() if message is None}
    lines = [line for line in said.err.splitlines() if line.startswith("skipped")]
    for name, (_, message) in IMAGES.items():
        if message is not None:
            assert any(name in line and message in line for line in lines), name
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 9, 9), np.uint8), "shape"),
        (np.zeros((8, 8, 8, 8, 8), np.uint8), "shape"),
        (np.zeros((2, 8, 8), np.int64), "uint8"),
        (np.full((2, 8, 8), np.nan), r"\[0, 1\]"),
        (np.full((2, 8, 8), -1.0), r"\[0, 1\]"),
        (np.array(["a", "b"]), "images"),
        (np.zeros((2, 8, 8), complex), "images"),
        (np.array([None, None]), "images"),
        (42, "images"),
        (None, "images"),
        ({"a": 1}, "images"),
        ([None], "images"),
        (["nowhere.png"], r"nowhere\.png: no such file"),
        ([b"nowhere.png"], "images"),
        ([np.zeros((3, 3), np.uint8)], "shape"),
    ],
)
def test_wrong_types_and_shapes_in_python(tiny_run, images, message):
    with pytest.raises(NPMatchError, match=message):
        npmatch.load(tiny_run.folder).predict(images)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training.iterations": "many"}, "training.iterations"),
        ({"training.batch": 0}, "training.batch=0"),
        ({"training.learning_rate": float("nan")}, "training.learning_rate"),
        ({"training.learning_rate": float("inf")}, "training.learning_rate"),
        ({"data.labels": 10**9}, "142 labelled images, but 100000000 are wanted"),
        ({"seed": None}, "seed"),
        ({1: 2}, "unknown key"),
        (["no equals sign"], "key=value"),
        ({"data.validation": 1.5}, "validation=1.5"),
    ],
)
def test_wrong_settings_in_python(tmp_path, settings, message):
    with pytest.raises(NPMatchError, match=message):
        npmatch.fit("digits-40", out=tmp_path / "run", overrides=settings, quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_file_where_a_folder_should_be(tmp_path, capfd):
    path = write(tmp_path / "file", "x")
    assert_one_line(capfd, main(["train", "digits-40", "--out", str(path), "--quiet"]), "file")
    assert_one_line(capfd, main(["train", "digits-40", "--out", str(path / "run"), "--quiet"]), "file")
    assert_one_line(capfd, main(["evaluate", str(path)]), "no such run")
    assert path.read_text() == "x"
