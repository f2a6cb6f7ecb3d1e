"""The command line as a user types it: exit codes, one-line errors, JSON alone on standard output."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import npmatch
from npmatch.cli import main
from npmatch.data import load_dataset
from npmatch.training import read_records
from tiny import TINY

WORDS = [f"{key}={value}" for key, value in TINY.items()]


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "inner").mkdir(parents=True)
    for i, pixels in enumerate(load_dataset("digits").test.images.pixels[:6]):
        Image.fromarray(pixels[0].numpy()).save((folder if i % 2 else folder / "inner") / f"{i}.png")
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "digits-41"], "unknown recipe 'digits-41'; did you mean 'digits-40'?"),
        (["train", "digits-40", "--algorithm", "npmach"], "unknown algorithm 'npmach'; did you mean 'npmatch'?"),
        (["train", "digits-40", "training.iteration=3"], "unknown key 'training.iteration'; did you mean"),
        (["train", "digits-40", "training.iterations=x"], "training.iterations=x: must be a valid integer"),
        (["train", "digits-40", "backbone.name=wrn-28-3"], "unknown backbone 'wrn-28-3'"),
        (
            ["train", "digits-40", "augment.policy=natura"],
            "unknown augmentation policy 'natura'; did you mean 'natural'",
        ),
        (["train", "digits-40", "data.labels=3"], "labels"),
        (["train", "digits-40", "data.split=."], "npmatch: .: a folder; name a split's file, as a run has one"),
        (["train", "digits-40", "training.iterations=0"], "training.iterations=0: must be greater than 0"),
        (["train", "digits-40", "algorithm.width=-1"], "algorithm.width=-1: must be greater than 0"),
        (["train", "digits-40", "cifar10-40"], "one recipe at a time"),
        (["train"], "nothing to train on"),
        (["train", "--data", "nowhere"], "nowhere"),
        (["train", "digits-40", "--device", "tpu"], "--device tpu"),
        (["train", "digits-40", "--sed", "1"], "--sed"),
        (["evaluate", "nowhere"], "nowhere: no such run"),
        pytest.param(
            ["train", "digits-40", "--device", "cuda"],
            "torch finds no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        (["predict", "nowhere", "x.png", "-o", "out.csv"], "nowhere: no such run"),
        (["trian"], "trian"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if words[0] == "train" and "--out" not in words:
        words = [*words, "--out", str(tmp_path / "run")]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists(), "no half-started run is left behind"


def test_train_evaluate_and_resume(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", "digits-40", "--out", str(run), "--seed", "3", "--device", "cpu", "--json", *WORDS]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(run), "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert set(evaluated) == {"error", "top5_error", "ece", "uce", "nll", "brier", "n", "classes"}
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


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_predict_writes_one_row_per_image(tiny_run, pictures, tmp_path, capsys, ending):
    out = tmp_path / "out" / f"predictions.{ending}"
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(out)]) == 0
    if ending == "csv":
        rows = read_csv(out)
        rows = [{**r, "probabilities": json.loads(r["probabilities"])} for r in rows]
    elif ending == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        rows = pq.read_table(out).to_pylist()
    assert list(rows[0]) == ["path", "label", "confidence", "uncertainty", "probabilities"]
    expected = npmatch.load(tiny_run.folder).predict([row["path"] for row in rows])
    assert len(rows) == 6
    for row, probs, entropy in zip(rows, expected.probs, expected.entropy, strict=True):
        torch.testing.assert_close(torch.tensor(row["probabilities"]), probs)
        assert float(row["confidence"]) == pytest.approx(probs.max().item(), rel=1e-5)
        assert float(row["uncertainty"]) == pytest.approx(entropy.item(), rel=1e-5)
        assert row["label"] == str(probs.argmax().item())


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_predict_writes_names_that_are_not_utf8(tiny_run, pictures, tmp_path, ending):
    (pictures / "1.png").rename(pictures / os.fsdecode(b"caf\xe9.png"))  # as an archive from elsewhere unpacks it
    out = tmp_path / f"out.{ending}"
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(out)]) == 0
    if ending == "parquet":
        assert sum(path.endswith("/caf\\xe9.png") for path in pq.read_table(out)["path"].to_pylist()) == 1
    else:
        assert out.read_bytes().count(b"/caf\xe9.png") == 1


def test_a_broken_file_is_skipped_by_name_and_the_rest_is_predicted(tiny_run, pictures, tmp_path, capsys):
    (pictures / "broken.png").write_bytes(b"not a picture")
    out = tmp_path / "out.csv"
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(out)]) == 1
    captured = capsys.readouterr()
    assert "broken.png" in captured.err
    assert "6 images, 1 skipped" in captured.out
    assert len(read_csv(out)) == 6


def test_pictures_that_are_not_read_are_skipped_by_name(tiny_run, pictures, tmp_path, capsys):
    (pictures / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic")
    shutil.copy(pictures / "1.png", pictures / "misnamed.avif")  # read by its content, as any file is
    Image.new("RGB", (8, 8)).save(pictures / "camera.dng", "TIFF")  # as is the thumbnail in front of a raw picture
    (tmp_path / "album").mkdir()
    (pictures / "album").symlink_to(tmp_path / "album")
    out = tmp_path / "out.csv"
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(out), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    unread = "a picture in a format that is not read; save it as JPEG or PNG"
    assert told["skipped"] == [
        f"{pictures / 'album'}: a link to a folder, which is not followed; name it beside the others",
        f"{pictures / 'camera.dng'}: {unread}",
        f"{pictures / 'phone.heic'}: {unread}",
    ]
    assert told["written"] == len(read_csv(out)) == 7


def test_predict_refuses_what_it_cannot_write_or_find(tiny_run, pictures, tmp_path, capsys):
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(tmp_path / "out.xlsx")]) == 2
    assert ".csv" in capsys.readouterr().err
    assert main(["predict", str(tiny_run.folder), str(tmp_path / "absent"), "-o", str(tmp_path / "out.csv")]) == 2
    assert "absent: no such file" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_recipes_are_listed_with_the_papers_error(capsys):
    assert main(["recipes", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    assert rows["cifar10-40"]["paper_error"]["npmatch"] == [4.91, 0.04]
    assert {"digits-40", "cifar100-10000", "stl10-1000", "imagenet-100k"} <= rows.keys()
    assert main(["recipes"]) == 0
    assert "4.91 ± 0.04 %" in capsys.readouterr().out


def test_training_on_a_folder_of_pictures(tmp_path, capsys):
    """labeled/<class>, unlabeled and test as a user has them, with sizes and modes mixed."""
    g = torch.Generator().manual_seed(0)
    for part, count in (
        ("labeled/dark", 4),
        ("labeled/light", 4),
        ("unlabeled", 16),
        ("test/dark", 3),
        ("test/light", 3),
    ):
        (tmp_path / "data" / part).mkdir(parents=True)
        for i in range(count):
            light = part.endswith("light") or (part == "unlabeled" and i % 2)
            size = (20 + i, 24)
            pixels = torch.randint(160 if light else 0, 256 if light else 90, (*size, 3), generator=g).byte().numpy()
            Image.fromarray(pixels).convert("L" if i % 3 == 0 else "RGB").save(tmp_path / "data" / part / f"{i}.png")
    run = tmp_path / "run"
    words = ["training.iterations=25", "training.batch=4", "backbone.width=4", "data.image_size=16", "training.ema=0.8"]
    assert main(["train", "--data", str(tmp_path / "data"), "--out", str(run), "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 6
    assert main(["predict", str(run), str(tmp_path / "data" / "test"), "-o", str(tmp_path / "out.csv")]) == 0
    assert {row["label"] for row in read_csv(tmp_path / "out.csv")} <= {"dark", "light"}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_run_and_resume_finishes_it(tmp_path, signum, code):
    run = tmp_path / "run"
    words = ["train", "digits-40", "--out", str(run), "--device", "cpu", *WORDS, "training.iterations=3000"]
    command = [sys.executable, "-m", "npmatch", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while not list((run / "checkpoints").glob("*.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "--resume" in err
    steps = [r["step"] for r in read_records(run) if r["kind"] == "train"]
    assert steps == list(range(5, steps[-1] + 1, 5))


def test_a_terminal_that_knows_ascii_alone_is_enough(tiny_run):
    poor = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-m", "npmatch"]
    listed = subprocess.run([*words, "recipes"], env=poor, capture_output=True, check=False)
    assert (listed.returncode, listed.stderr) == (0, b"")
    again = ["train", "digits-40", "--out", str(tiny_run.folder), "--resume"]
    refused = subprocess.run([*words, *again], env=poor, capture_output=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.count(b"\n") == 1
    assert rb"training.iterations: 24 \u2192 1500" in refused.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_standard_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "npmatch", "recipes"]
        run = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (run.returncode, run.stderr) == (2, "npmatch: input or output: No space left on device\n")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nmore"), r"CUDA out of memory.*9 GiB"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "DefaultCPUAllocator"),
        (MemoryError(), "on this machine"),
        (OSError(5, "Input/output error", "/mnt/x"), "/mnt/x: Input/output error"),
    ],
)
def test_what_a_machine_refuses_is_one_line(monkeypatch, capfd, problem, message):
    def refuse(*a, **k):
        raise problem

    monkeypatch.setattr("npmatch.runs.fit.fit", refuse)
    assert main(["train", "digits-40"]) == 2
    said = capfd.readouterr().err
    assert re.search(message, said)
    assert said.count("\n") == 1


def test_a_mistake_of_ours_is_not_called_the_users(monkeypatch):
    monkeypatch.setattr("npmatch.runs.fit.fit", lambda *a, **k: torch.zeros(2) + torch.zeros(3))
    with pytest.raises(RuntimeError, match="must match"):
        main(["train", "digits-40"])
