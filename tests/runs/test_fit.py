"""Whole runs: determinism, resume, label secrecy, what a run leaves behind."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

import npmatch
from npmatch.data import ImageSet, load_dataset
from npmatch.errors import InterruptedRunError, NPMatchError
from npmatch.training import load_tensors
from npmatch.training.loop import Trainer
from npmatch.types import Dataset
from same_runs import log, same_run
from tiny import stop_tiny, train_tiny


def weights(folder):
    return load_tensors(folder / "model.safetensors")[0]


def assert_same_weights(one, other):
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_leaves_all_that_was_promised(tiny_run):
    names = {path.name for path in tiny_run.folder.iterdir()}
    assert names == {
        "config.yaml", "metrics.jsonl", "tensorboard", "checkpoints", "model.safetensors", "config.json",
        "split.json", "report.html", "predictions", "environment.json", "data.json", ".lock",
        "calibration.json", "calibration.safetensors",
    }  # fmt: skip
    assert {r["kind"] for r in tiny_run.records()} == {"train", "eval", "final"}
    final = tiny_run.records()[-1]
    assert final["kind"] == "final"
    assert final["step"] == 24
    assert final["n"] == 360
    steps = [r["step"] for r in tiny_run.records() if r["kind"] == "train"]
    assert steps == [5, 10, 15, 20, 24]
    line = next(r for r in tiny_run.records() if r["kind"] == "train")
    assert {
        "loss",
        "loss_labeled",
        "loss_unlabeled",
        "divergence",
        "alpha",
        "kl",
        "js_half",
        "from_feature",
        "from_z",
        "from_r",
        "trusted",
    } <= line.keys()


def test_the_same_seed_gives_the_same_run_and_the_same_file(tiny_run, tmp_path):
    again = train_tiny(tmp_path / "again")
    assert log(again.folder) == log(tiny_run.folder)
    for name in ("model.safetensors", "config.json", "split.json", "calibration.json", "calibration.safetensors"):
        assert (again.folder / name).read_bytes() == (tiny_run.folder / name).read_bytes()


def test_another_seed_gives_another_split_and_other_draws(tiny_run, tmp_path):
    other = train_tiny(tmp_path / "other", seed=1)
    first, second = (json.loads((f / "split.json").read_text()) for f in (tiny_run.folder, other.folder))
    assert first["labeled"] != second["labeled"]
    reused = train_tiny(tmp_path / "reused", seed=1, data__split=str(tiny_run.folder / "split.json"))
    assert json.loads((reused.folder / "split.json").read_text())["labeled"] == first["labeled"]
    assert log(reused.folder) != log(tiny_run.folder)


@pytest.fixture(scope="module")
def straight_runs(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "run"
    return {"npmatch": tiny_run, "supervised": train_tiny(folder, algorithm="supervised")}


@pytest.mark.parametrize("stop_after", [1, 7, 12, 23])
@pytest.mark.parametrize("algorithm", ["npmatch", "supervised"])
def test_interrupt_and_resume_end_with_the_same_weights(straight_runs, tmp_path, monkeypatch, stop_after, algorithm):
    straight = straight_runs[algorithm]
    take_step = Trainer.take_step

    def interrupting(self, raw):
        take_step(self, raw)
        if self.step == stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "take_step", interrupting)
    folder = tmp_path / "interrupted"
    with pytest.raises(InterruptedRunError) as stopped:
        train_tiny(folder, algorithm=algorithm)
    assert stopped.value.step == stop_after
    assert stopped.value.exit_code == 130
    monkeypatch.setattr(Trainer, "take_step", take_step)
    resumed = train_tiny(folder, resume=True, algorithm=algorithm)
    assert_same_weights(resumed.folder, straight.folder)
    assert same_run(resumed.folder, straight.folder)


@pytest.mark.parametrize(
    "piece",
    ["ema", "momentum", "meter", "step", "algorithm/curriculum.counts", "algorithm/model.head.latent_bank.rows"],
)
def test_dropping_a_piece_of_state_breaks_the_resume(tiny_run, tmp_path, monkeypatch, piece):
    """Shows that the test above can fail: each piece of state is replaced by that of a new run."""
    restore = Trainer.restore
    part, _, key = piece.partition("/")

    def forgetful(self, step, parts):
        fresh = {
            "algorithm": {k: v.clone() for k, v in self.algorithm.state_dict().items()},
            "ema": {k: v.clone() for k, v in self.update.ema.state_dict().items()},
            "momentum": {k: v.clone() for k, v in self.update.state_dict().items()},
            "meter": {},
        }
        if part == "step":
            step = 0
        else:
            parts[part] = {**parts[part], key: fresh[part][key]} if key else fresh[part]
        restore(self, step, parts)

    monkeypatch.setattr(Trainer, "restore", forgetful)
    folder = tmp_path / "run"
    stop_tiny(folder, 12)
    resumed = train_tiny(folder, resume=True)
    assert not same_run(resumed.folder, tiny_run.folder)


def test_labels_of_unlabelled_images_never_reach_the_optimiser(tiny_run, tmp_path, monkeypatch):
    """Label secrecy: shuffled labels of unlabelled images leave the weights bit-identical."""
    digits, straight = load_dataset("digits"), tiny_run
    labeled = set(json.loads((straight.folder / "split.json").read_text())["labeled"])
    secret = torch.tensor([i for i in range(len(digits.train)) if i not in labeled])
    shuffled = digits.train.labels.clone()
    shuffled[secret] = shuffled[secret[torch.randperm(len(secret))]]
    assert not torch.equal(shuffled, digits.train.labels)
    lied = Dataset(
        "digits",
        digits.class_names,
        ImageSet(digits.train.images, shuffled),
        digits.test,
        digits.mean,
        digits.std,
    )
    monkeypatch.setattr("npmatch.runs.fit.load_configured", lambda *a: lied)
    monkeypatch.setattr(
        "npmatch.data.split.dataset_fingerprint",
        lambda dataset: json.loads((straight.folder / "split.json").read_text())["fingerprint"],
    )
    other = train_tiny(tmp_path / "other", data__split=str(straight.folder / "split.json"))
    assert_same_weights(straight.folder, other.folder)
    diagnostics = [
        [r.get("pseudo_accuracy") for r in log(f) if r["kind"] == "train"] for f in (straight.folder, other.folder)
    ]
    assert diagnostics[0] != diagnostics[1], "the diagnostic does read them, so the shuffle was real"


def test_a_finished_run_resumes_at_once_and_a_changed_one_is_refused(tiny_run):
    again = npmatch.fit(out=tiny_run.folder, resume=True, quiet=True)
    assert again.scores["error"] == tiny_run.scores["error"]
    with pytest.raises(NPMatchError, match=r"algorithm\.divergence: js → kl"):
        train_tiny(tiny_run.folder, resume=True, algorithm__divergence="kl")
    with pytest.raises(NPMatchError, match="--resume"):
        train_tiny(tiny_run.folder)


@pytest.mark.parametrize(("crop", "size"), [("pad", 4), ("pad", 9), ("resized", 12)])
def test_a_size_of_views_that_evaluation_could_not_see_is_refused(tmp_path, crop, size):
    with pytest.raises(NPMatchError, match=f"augment.size={size}"):
        train_tiny(tmp_path / "run", **{"augment.crop": crop, "augment.size": size})
    assert not (tmp_path / "run").exists()


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("months of work")
    with pytest.raises(NPMatchError, match="not empty"):
        train_tiny(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_loaded_model_predicts_as_the_run_did(tiny_run):
    test = load_dataset("digits").test
    classifier = npmatch.load(tiny_run.folder)
    prediction = classifier.predict(test.images.pixels)
    error = 100 * (prediction.label != test.labels).float().mean().item()
    assert error == pytest.approx(tiny_run.scores["error"], abs=1e-4)
    assert prediction.disagreement is not None
    found = npmatch.evaluate_run(tiny_run.folder)
    torch.testing.assert_close(found.prediction.probs, prediction.probs)
    assert classifier.class_names == tuple("0123456789")
    assert not any("curriculum" in name for name in weights(tiny_run.folder))
    assert weights(tiny_run.folder)["head.latent_bank.rows"].shape[0] == 2, "of a bank only its mean is kept"


def test_predict_takes_arrays_pictures_and_files(tiny_run, tmp_path):
    classifier = npmatch.load(tiny_run.folder)
    pixels = load_dataset("digits").test.images.pixels[:5]
    expected = classifier.predict(pixels).probs
    arrays = [
        pixels.numpy(),
        pixels[:, 0],
        pixels.permute(0, 2, 3, 1),
        pixels.float() / 255,
        list(pixels.numpy()),
    ]
    pictures = [Image.fromarray(p[0].numpy()) for p in pixels]
    for i, picture in enumerate(pictures):
        picture.save(tmp_path / f"{i}.png")
    for images in [*arrays, pictures, sorted(tmp_path.glob("*.png"))]:
        torch.testing.assert_close(classifier.predict(images).probs, expected)
    assert classifier.predict(pictures[0]).probs.shape == (1, 10)
    assert classifier.predict([]).probs.shape == (0, 10)
    for bad, message in [
        (np.zeros((2, 9, 9), np.uint8), r"\(1, 8, 8\)"),
        (np.zeros((2, 8, 8), np.int32), "uint8"),
        (np.full((2, 8, 8), 9.0), r"\[0, 1\]"),
    ]:
        with pytest.raises(NPMatchError, match=message):
            classifier.predict(bad)


def test_a_users_data_set_and_algorithm_from_one_file_each(tmp_path, monkeypatch):
    (tmp_path / "pictures_and_plain.py").write_text(
        "import torch\nimport torch.nn.functional as F\nimport npmatch\nfrom npmatch.data import ArrayImages\n"
        "def data(root):\n"
        "    g = torch.Generator().manual_seed(0)\n"
        "    y = torch.arange(90) % 3\n"
        "    x = torch.randint(0, 40, (90, 3, 12, 12), generator=g).byte() + (y * 70).byte()[:, None, None, None]\n"
        "    train, test = [npmatch.ImageSet(ArrayImages(x[i::2]), y[i::2]) for i in (0, 1)]\n"
        "    return npmatch.Dataset('mine', ('a', 'b', 'c'), train, test, (0.5,) * 3, (0.25,) * 3)\n"
        "class Plain(npmatch.Algorithm):\n"
        "    def loss(self, batch, progress):\n"
        "        loss = F.cross_entropy(self.model.head(self.model.features(batch.x)), batch.y)\n"
        "        return npmatch.Step(loss, {})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = npmatch.fit(
        algorithm="pictures_and_plain:Plain",
        out=tmp_path / "run",
        quiet=True,
        overrides={
            "data.source": "pictures_and_plain:data", "data.image_size": None, "data.labels": 6,
            "training.iterations": 60, "training.batch": 6,
            "training.ema": 0.8, "backbone.width": 8, "augment.padding": 2,
        },
    )  # fmt: skip
    assert run.scores["error"] < 10
    assert npmatch.load(tmp_path / "run").class_names == ("a", "b", "c")


def test_without_a_test_set_the_validation_share_is_used(tmp_path, monkeypatch):
    digits = load_dataset("digits")
    alone = Dataset("digits", digits.class_names, digits.train, None, digits.mean, digits.std)
    for module in ("fit", "open"):
        monkeypatch.setattr(f"npmatch.runs.{module}.load_configured", lambda *a: alone)
    run = train_tiny(tmp_path / "validated", data__validation=0.1)
    assert 100 < run.scores["n"] < 200
    bare = train_tiny(tmp_path / "bare")
    assert "error" not in bare.scores
    with pytest.raises(NPMatchError, match="no test images"):
        npmatch.evaluate_run(tmp_path / "bare")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_named(tiny_run):
    with pytest.raises(NPMatchError, match="--device cpu"):
        npmatch.load(tiny_run.folder, device="cuda")
