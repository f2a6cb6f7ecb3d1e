"""A run lists and checks a folder once; a folder, a CSV and arrays of the same images get the same settings."""

import csv
import os
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import npmatch
from few_photos import WORDS, save_photos
from npmatch.data.check import inspection
from npmatch.estimator import training
from npmatch.runs.folder import RunFolder


def test_a_folder_is_listed_once_and_opened_for_the_check_once(tmp_path, monkeypatch):
    photos = save_photos(tmp_path / "photos")
    walked, inspected = Counter(), Counter()
    scandir, inspect_file = os.scandir, inspection.inspect_file

    def counting_scan(folder):
        walked[str(folder)] += 1
        return scandir(folder)

    def counting_inspection(path, size=None):
        inspected[path] += 1
        return inspect_file(path, size)

    monkeypatch.setattr(os, "scandir", counting_scan)
    monkeypatch.setattr(inspection, "inspect_file", counting_inspection)
    # The check decodes the images, and everything after it takes them from memory.
    monkeypatch.setattr("npmatch.data.images.decode_image", lambda *a: pytest.fail("decoded again"))
    npmatch.fit(data=photos, out=tmp_path / "run", device="cpu", quiet=True, overrides={**WORDS, "data.workers": 0})
    folders = ("labeled/a", "labeled/b", "unlabeled", "test/a", "test/b")
    assert {folder: count for folder, count in walked.items() if folder.startswith(str(photos))} == {
        str(photos / folder): 1 for folder in folders
    }
    assert inspected == {str(path): 1 for path in photos.rglob("*.png")}


def settings(config):
    """The settings that training depends on, without the path of the images."""
    return {key: value for key, value in config.flat().items() if not key.startswith("data.")}


@pytest.mark.parametrize(("side", "grey"), [(8, True), (16, True), (20, False)])
def test_the_same_images_get_the_same_settings_in_a_folder_a_table_and_arrays(tmp_path, monkeypatch, side, grey):
    digits = load_digits()
    images = [Image.fromarray((image * 15.9).astype(np.uint8)) for image in digits.images[:60]]
    images = [image.resize((side, side)).convert("L" if grey else "RGB") for image in images]
    pixels, y = np.stack([np.asarray(image) for image in images]), digits.target[:60].copy()
    y[30:] = -1
    for number, (image, label) in enumerate(zip(images, y, strict=True)):
        path = tmp_path / "photos" / ("unlabeled" if label < 0 else f"labeled/{label}") / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    with open(tmp_path / "table.csv", "w", newline="") as file:
        paths = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.png"))
        labels = ["" if path.parent.name == "unlabeled" else path.parent.name for path in paths]
        csv.writer(file).writerows([("path", "label"), *zip(paths, labels, strict=True)])
    words = {"training.iterations": 3, "seed": 7}
    configs = {}
    for name in ("photos", "table.csv"):
        run = npmatch.fit(data=tmp_path / name, out=tmp_path / f"run-{name}", quiet=True, device="cpu", overrides=words)
        configs[name] = RunFolder(run.folder).read_config()
    made = []
    build = training.build_to_fit
    monkeypatch.setattr(training, "build_to_fit", lambda config, *rest: made.append(config) or build(config, *rest))
    monkeypatch.setattr("npmatch.estimator.estimator.check_random_state", lambda state: Seeded())
    npmatch.NPMatchClassifier(iterations=3, device="cpu").fit(pixels, y)
    expected = settings(configs["photos"])
    assert settings(configs["table.csv"]) == expected
    assert {**settings(made[0]), "training.max_bad_steps": 10} == expected
    assert expected["algorithm.max_entropy"] == 1.2
    assert expected["training.clip"] == 1


class Seeded:
    """A stand-in for a random state that returns the seed of the other runs."""

    def randint(self, high):
        return 7
