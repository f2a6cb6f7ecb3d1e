"""The benchmark of processes: its figures are those of the runs it keeps, and nothing is trained twice."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

import npmatch
from benchmarks.command_line import run
from benchmarks.far_sets import FarSource, far_images, noise, with_channels
from benchmarks.process_scores import Judge, judged_images, seconds_per_step
from benchmarks.process_table import summarise
from benchmarks.processes import main, parse_processes
from npmatch.data import load_dataset, make_split
from npmatch.errors import InterruptedRunError
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import RunData
from npmatch.runs.process import ablate_context
from npmatch.training.loop import Trainer
from npmatch.training.nonfinite import NotFiniteError
from npmatch.types import FOREIGN

SMALL = ["training.batch=8", "training.unlabeled_ratio=2", "backbone.width=4"]
PROCESSES = "paper,kernel[max_entropy=2,scale=1000],flexmatch"


def words(out: Path, *more: str, processes: str = PROCESSES) -> list[str]:
    small = ["--iterations", "12", "--seeds", "0,1", "--device", "cpu", "--out", str(out), "--json"]
    return ["digits-40", *SMALL, "--processes", processes, *small, *more]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture
def found(out, capsys):
    """The result; only the first test trains, because the others find its runs."""
    assert run(main, words(out / "runs", "-o", str(out / "table.md"), "-o", str(out / "rows.jsonl"))) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr(Trainer, "take_step", lambda self, raw: pytest.fail("nothing may be trained again"))


def folder_of(out: Path, process: str, seed: int) -> Path:
    (folder,) = [f for f in (out / "runs").glob(f"*/seed-{seed}-*") if f.is_dir() and process in str(f)]
    return folder


def test_a_row_for_every_process_with_means_over_seeds(found, out):
    names = ["paper", "kernel[max_entropy=2;scale=1000]", "flexmatch"]
    assert [row["process"] for row in found["rows"]] == names
    for row in found["rows"]:
        errors = [one["error"] for one in found["runs"] if one["process"] == row["process"]]
        assert row["error"] == pytest.approx(statistics.mean(errors))
        assert row["error_std"] == pytest.approx(statistics.stdev(errors))
    assert found["rows"][0]["step_ms_ratio"] == found["rows"][0]["predict_s_ratio"] == 1
    page = (out / "table.md").read_text(encoding="utf-8")
    assert f"| {found['rows'][0]['error']:.2f} ± {found['rows'][0]['error_std']:.2f} |" in page
    assert all(f"| {name} |" in page for name in names)
    assert [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()] == found["runs"]


def test_the_figures_are_those_of_the_run(found, out, no_training):
    (row,) = [one for one in found["runs"] if one["process"].startswith("kernel") and one["seed"] == 1]
    folder = folder_of(out, "kernel", 1)
    assert row["error"] == pytest.approx(RunFolder(folder).final_scores()["error"])
    contexts = {one.change: one.error for one in ablate_context(folder, device="cpu")}
    assert row["context/labels permuted"] == contexts["labels permuted"]
    classifier, digits = npmatch.load(folder, "cpu"), load_dataset("digits")
    prediction = classifier.predict(digits.test.images.pixels)
    wrong = prediction.label != digits.test.labels
    assert row["wrong/entropy"] == pytest.approx(100 * roc_auc_score(wrong, prediction.entropy))
    strange = classifier.predict(noise((1, 8, 8), len(digits.test)).pixels)
    scores = torch.cat([prediction.disagreement, strange.disagreement])
    expected = roc_auc_score([0] * len(prediction.label) + [1] * len(strange.label), scores)
    assert row["noise/disagreement"] == pytest.approx(100 * expected)


def test_a_rival_without_samples_has_no_figures_of_a_process(found):
    (row,) = [row for row in found["rows"] if row["process"] == "flexmatch"]
    assert row.keys() >= {"wrong/entropy", "noise/entropy", "noise/1 − max p", "noise/distance", "noise/ood"}
    assert not [key for key in row if "disagreement" in key or key.startswith("context/")]


def test_other_images_to_judge_by_need_no_training(found, out, no_training, capsys):
    assert run(main, words(out / "runs", "--judge", "unlabeled")) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["runs"][0]["n"] == len(load_dataset("digits").train) - 40
    assert again["runs"][0]["step_ms"] == found["runs"][0]["step_ms"]


def test_a_benchmark_that_was_stopped_goes_on(tmp_path, capsys, monkeypatch):
    take_step, taken = Trainer.take_step, []

    def stopping(self, raw):
        take_step(self, raw)
        taken.append(self.step)
        if len(taken) == 14:  # in the second training
            raise InterruptedRunError(self.step, 2)

    monkeypatch.setattr(Trainer, "take_step", stopping)
    command = words(tmp_path, "training.checkpoint_every=1", processes="paper")
    assert run(main, command) == 130
    assert "paper, seed 1: stopped after step 2; the same command goes on from there" in capsys.readouterr().err
    assert run(main, command) == 0
    assert taken[14:] == list(range(2, 13)), "the second training goes on from its checkpoint"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--processes", "kernl"], "unknown process or algorithm 'kernl'; did you mean 'kernel'?"),
        (["--processes", "x*flexmatch"], "'x*flexmatch': write the number of members before the star"),
        (["--processes", "1*flexmatch"], "for example 5*fixmatch"),
        (["--processes", "probe"], "unknown process or algorithm 'probe'"),
        (["--processes", "kernel[process=paper]"], "'kernel[process=paper]' sets algorithm.process twice"),
        (["--processes", "flexmatch", "algorithm.samples=3"], "NAME[key=value]"),
        (["--seeds", "0,x"], "--seeds 0,x: give numbers, such as 0,1,2"),
        (["--far", "digits"], "--far digits: holds the known classes themselves"),
        (["--far", "mnist=no-such-folder"], "--far mnist, whose folder is given as mnist=DIR: no-such-folder: no such"),
        (["--far", "noise"], "noise is always included"),
        (["-o", "table.txt"], "-o table.txt: name a file that ends in .md, .json, .jsonl"),
        (["-o", "no-such-folder/table.md"], "cannot be written there"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(more, message, tmp_path, capsys, no_training):
    assert run(main, [*words(tmp_path / "runs", processes="paper"), *more]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_processes_are_read_as_they_are_written():
    found = parse_processes("paper, kernel[max_entropy=2,scale=1000],flexmatch,npmatch[process=attentive],5*flexmatch")
    assert [rival.label for rival in found] == [
        "paper",
        "kernel[max_entropy=2;scale=1000]",
        "flexmatch",
        "attentive",
        "5*flexmatch",
    ]
    assert {rival.variant.algorithm for rival in found} == {"npmatch", "flexmatch"}
    assert found[2].variant == found[4].variant


def test_an_ensemble_is_the_mean_of_networks_with_the_same_labels(tmp_path, capsys):
    assert run(main, words(tmp_path, processes="flexmatch,2*flexmatch")) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = [one for one in found["runs"] if one["process"] == "2*flexmatch" and one["seed"] == 1]
    folders = sorted(folder for folder in tmp_path.glob("flexmatch/seed-1-*") if folder.is_dir())
    assert len(folders) == 2
    digits = load_dataset("digits")
    splits = [json.loads((folder / "split.json").read_text()) for folder in folders]
    assert splits[0]["labeled"] == splits[1]["labeled"]
    probs = [npmatch.load(folder, "cpu").predict(digits.test.images.pixels).probs for folder in folders]
    assert not torch.equal(*probs)
    wrong = torch.stack(probs).mean(0).argmax(-1) != digits.test.labels
    assert row["error"] == pytest.approx(100 * wrong.float().mean().item())
    assert row.keys() >= {"wrong/disagreement", "noise/disagreement", "noise/1 − max p"}
    assert not [key for key in row if key.endswith(("distance", "ood")) or key.startswith("context/")]


def test_times_are_compared_seed_by_seed():
    rows = [
        {"process": process, "seed": seed, "step_ms": ms, "predict_s": 1.0}
        for process, seed, ms in (("a", 0, 10.0), ("b", 0, 20.0), ("a", 1, 30.0), ("b", 1, 90.0), ("b", 2, 1.0))
    ]
    _, (first, second) = summarise(["a", "b"], rows)
    assert first["step_ms_ratio"] == 1
    assert second["step_ms_ratio"] == 2.5
    assert second["seeds"] == 3


def test_the_first_interval_of_the_log_does_not_count_where_it_compiles():
    log = [{"kind": "train", "step": step, "seconds": s} for step, s in ((50, 60.0), (100, 65.0), (150, 70.0))]
    assert seconds_per_step([*log, {"kind": "final", "step": 150, "seconds": 80.0}]) == pytest.approx(0.1)


def test_hidden_labels_judge_and_foreign_images_are_apart():
    digits = load_dataset("digits")
    split = make_split(digits, 40, 0)
    hidden = split.unlabeled[~torch.isin(split.unlabeled, split.labeled)]
    labels = digits.train.labels.clone()
    labels[hidden[:100]] = FOREIGN
    run_data = RunData(Path("run"), None, replace(digits, train=replace(digits.train, labels=labels)), split)
    known, near = judged_images(run_data, Judge.unlabeled)
    assert torch.equal(known.images.index, hidden[100:])
    assert torch.equal(near.images.index, hidden[:100])
    known, near = judged_images(run_data, Judge.test)
    assert len(known) == len(digits.test)
    assert near is None


def test_far_images_get_the_shape_of_the_models():
    images = far_images(FarSource("digits"), (3, 32, 32))
    assert images.shape == (3, 32, 32)
    assert len(images) == len(load_dataset("digits").test)
    assert images.pixels.float().std() > 10
    pixels = torch.randint(256, (1, 3, 5, 5), dtype=torch.uint8)
    grey = Image.fromarray(pixels[0].permute(1, 2, 0).numpy()).convert("L")
    assert (with_channels(pixels, 1)[0, 0].int() - torch.tensor(np.array(grey)).int()).abs().max() <= 1


def test_a_training_that_diverges_is_left_out(tmp_path, capsys, monkeypatch):
    take_step = Trainer.take_step

    def diverging(self, raw):
        if self.algorithm.config.process == "kernel" and self.seed == 1:
            raise NotFiniteError("loss was not finite", "at step 3")
        take_step(self, raw)

    monkeypatch.setattr(Trainer, "take_step", diverging)
    assert run(main, words(tmp_path, processes="paper,kernel")) == 1
    out, err = capsys.readouterr()
    assert "4 of 4: kernel, seed 1: " in err
    found = json.loads(out)
    assert [row["seeds"] for row in found["rows"]] == [2, 1]
    assert "Diverged, and left out: kernel, seed 1." in found["notes"]
