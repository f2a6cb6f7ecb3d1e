"""The benchmark of the first labels: both rules at every number of labels, judged by images that were not chosen."""

import torch

from benchmarks.first_labels import bench_first_labels, choose, measure
from few_photos import save_photos


def test_both_rules_are_judged(tmp_path):
    photos = save_photos(tmp_path / "photos", size=(36, 36), labels=12, unlabeled=0, test=0)
    result = bench_first_labels(str(photos), labels=(2, 4), seeds=1, device="cpu")
    assert [(row["labels"], row["rule"]) for row in result.rows] == [
        (2, "random"),
        (2, "typical"),
        (4, "random"),
        (4, "typical"),
    ]
    assert all(0 <= row[key] <= 100 for row in result.rows for key in ("probe", "spreading"))


def test_typical_images_of_separate_classes_are_enough():
    f = torch.eye(3).repeat_interleave(20, 0)
    y = torch.arange(3).repeat_interleave(20)
    found = measure(f, y, choose("typical", f, 3, seed=0), 3)
    assert found["classes"] == 3
    assert found["probe"] == 0
