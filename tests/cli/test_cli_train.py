"""`npmatch train` and `evaluate` as a user types them: JSON alone on standard output, resume, signals."""

import csv
import io
import json
import os
import signal
import time

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from few_photos import save_photo, save_photos
from npmatch.cli import main
from npmatch.cli.shared import score_table
from npmatch.runs.folder import RunFolder
from starting import started_command
from tiny import TINY

WORDS = [f"{key}={value}" for key, value in TINY.items()]


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_train_evaluate_and_resume(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", "digits-40", "--out", str(run), "--seed", "3", "--device", "cpu", "--json", *WORDS]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(run), "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert set(evaluated) == {
        "error",
        "balanced_error",
        "geometric_accuracy",
        "top5_error",
        "ece",
        "uce",
        "nll",
        "brier",
        "n",
        "classes",
    }
    table = pq.read_table(run / "predictions" / "test.parquet").to_pylist()
    for row in evaluated["classes"]:
        images = [image for image in table if image["true_label"] == row["name"]]
        wrong = [image for image in images if image["label"] != row["name"]]
        assert row["n"] == len(images)
        assert row["error"] == pytest.approx(100 * len(wrong) / len(images))
        assert row["uncertainty"] == pytest.approx(sum(i["uncertainty"] for i in images) / len(images), rel=1e-5)
    assert [row["name"] for row in evaluated["classes"]] == [str(digit) for digit in range(10)]
    assert evaluated["error"] == pytest.approx(trained["error"])
    assert evaluated["n"] == 360
    assert main(["evaluate", str(run)]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main(["train", "digits-40", "--out", str(run), "--seed", "3", "--resume", *WORDS]) == 0
    assert "finished already" in capsys.readouterr().err


def test_resume_with_nothing_to_resume_starts_afresh_and_says_so(tmp_path, capsys):
    words = ["train", "digits-40", "--algorithm", "supervised", "--out", str(tmp_path / "run"), "--resume"]
    assert main([*words, "training.iterations=3", "training.batch=4", "backbone.width=4"]) == 0
    assert "nothing to resume" in capsys.readouterr().err


def test_training_on_a_folder_of_pictures(tmp_path, capsys):
    """labeled/<class>, unlabeled and test as a user has them, with sizes and modes mixed."""
    save_photos(tmp_path / "data", (24, 20), classes=("dark", "light"), unlabeled=16, test=3)
    for name, light in (("dark", (0, 96)), ("light", (160, 256))):
        for part in ("labeled", "test"):
            save_photo(tmp_path / "data" / part / name / "grey.png", mode="L", size=(31, 20), light=light)
    run = tmp_path / "run"
    words = ["training.iterations=25", "training.batch=4", "backbone.width=4", "data.image_size=16", "training.ema=0.8"]
    assert main(["train", "--data", str(tmp_path / "data"), "--out", str(run), "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 8
    assert main(["predict", str(run), str(tmp_path / "data" / "test"), "-o", str(tmp_path / "out.csv")]) == 0
    assert {row["label"] for row in read_csv(tmp_path / "out.csv")} <= {"dark", "light"}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_run_and_resume_finishes_it(tmp_path, signum, code):
    run = tmp_path / "run"
    words = ["train", "digits-40", "--out", str(run), "--device", "cpu", *WORDS, "training.iterations=3000"]
    with started_command(tmp_path / "log", *words) as process:
        deadline = time.monotonic() + 60
        while not list((run / "checkpoints").glob("*.safetensors")):
            assert process.is_alive(), (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signum)
        process.join(60)
        assert process.exitcode == code
    assert "--resume" in (tmp_path / "log").read_text()
    steps = [r["step"] for r in RunFolder(run).records() if r["kind"] == "train"]
    assert steps == list(range(5, steps[-1] + 1, 5))


def test_scores_of_uneven_classes_show_means_over_classes_within_a_terminals_width():
    found = {"error": 11.67, "balanced_error": 21.5, "geometric_accuracy": 70.25, "top5_error": 0.0, "ece": 12.13}
    found |= {"uce": 26.24, "nll": 0.251, "brier": 0.143, "n": 10000, "seconds": 17.2}
    for ratio, shown in ((6.0, True), (1.5, False)):
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(score_table({**found, "class_ratio": ratio}))
        text = console.export_text()
        assert ("21.50 %" in text and "70.25 %" in text) is shown
        assert "…" not in text
