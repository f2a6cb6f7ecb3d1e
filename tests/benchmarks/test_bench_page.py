"""The benchmark of a folder's page: labels are given in its order, and the guesses judged by the images without one."""

from benchmarks.page import bench_page
from few_photos import save_photos


def test_the_quick_look_is_timed_and_judged(tmp_path):
    photos = save_photos(tmp_path / "photos", size=(36, 36), labels=12, unlabeled=0, test=0)
    result = bench_page(photos, images=20, labels=8, minutes=0, device="cpu")
    (row,) = result.rows
    assert row["model"] == "quick look"
    assert row["seconds"] >= 0
    assert 0 <= row["error"] <= 100
    assert 0 <= row["quick_look"] <= 100
    assert row["confidence"] is None, "that is the estimate of a trained model"
