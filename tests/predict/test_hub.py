"""Saving and loading as on the Hugging Face hub; a stand-in replaces the network, huggingface_hub reads the card."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch

import npmatch
from npmatch.cli import main
from npmatch.data import load_dataset
from npmatch.predict.card import ModelFacts, model_card

FILES = {"README.md", "config.json", "model.safetensors", "calibration.json", "calibration.safetensors"}


@pytest.fixture(scope="module")
def digits() -> torch.Tensor:
    return load_dataset("digits").test.images.pixels[:50]


@pytest.fixture
def saved(tiny_run, tmp_path) -> Path:
    npmatch.load(tiny_run.folder, "cpu").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_folder_says_what_the_run_says(tiny_run, saved, digits):
    assert {path.name for path in saved.iterdir()} == FILES
    wanted = npmatch.load(tiny_run.folder, "cpu").predict(digits)
    for again in (npmatch.Classifier.from_pretrained(saved, device="cpu"), npmatch.load(saved, "cpu")):
        assert torch.equal(again.predict(digits).probs, wanted.probs)
        assert again.class_names == tuple("0123456789")


def test_the_command_writes_the_same_folder(tiny_run, saved, tmp_path, capsys):
    out = tmp_path / "elsewhere" / "model"
    out.mkdir(parents=True)
    (out / "notes.txt").write_text("not of the model")
    assert main(["export", str(tiny_run.folder), "--format", "hub", "-o", str(out), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["files"]) == FILES
    (out / "notes.txt").unlink()
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {p.name: p.read_bytes() for p in saved.iterdir()}


def test_huggingface_hub_reads_the_card(tiny_run, saved):
    card = huggingface_hub.ModelCard.load(saved / "README.md")
    assert card.data.library_name == "npmatch"
    assert card.data.pipeline_tag == "image-classification"
    found = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert found["accuracy"] == pytest.approx(1 - tiny_run.scores["error"] / 100, abs=1e-4)
    assert found["ece"] == pytest.approx(tiny_run.scores["ece"] / 100, abs=1e-4)
    for words in ("40 labels", "1,437 images", "## Intended use", "## Limits", "from_pretrained", "360"):
        assert words in card.content
    assert str(tiny_run.folder.parent) not in card.content


@pytest.mark.parametrize("value", ["NaN", float("nan"), None, [1], "Infinity"])
def test_a_score_that_is_no_number_counts_as_not_measured(tiny_run, tmp_path, capsys, value):
    """Other programs may have written NaN as text, or null."""
    run = shutil.copytree(tiny_run.folder, tmp_path / "run")
    *lines, final = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines, json.dumps({**json.loads(final), "error": value}), ""]))
    assert main(["export", str(run), "--format", "hub", "-o", str(tmp_path / "model")]) == 0
    card = huggingface_hub.ModelCard.load(tmp_path / "model" / "README.md")
    assert "accuracy" not in [result.metric_type for result in card.data.eval_results]
    assert "Not measured" in card.content
    assert "its error is not known" in card.content
    capsys.readouterr()
    assert main(["train", "--out", str(run), "--resume"]) == 0
    assert main(["train", "--out", str(run), "--resume", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "error" not in printed
    assert printed["ece"] == tiny_run.scores["ece"]
    assert main(["report", str(run), "--json"]) == 0


def test_a_damaged_split_is_one_line(tiny_run, tmp_path, capsys):
    run = shutil.copytree(tiny_run.folder, tmp_path / "run")
    (run / "split.json").write_text("{}")
    assert main(["export", str(run), "--format", "hub", "-o", str(tmp_path / "model")]) == 2
    assert "split.json: not a split written by npmatch" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_another_models_calibration_does_not_stay_in_the_folder(tiny_run, saved):
    assert (saved / "calibration.safetensors").exists()
    model = npmatch.load(tiny_run.folder, "cpu")
    model.calibration = None
    model.save_pretrained(saved)
    assert {path.name for path in saved.iterdir()} == FILES - {"calibration.json", "calibration.safetensors"}


def test_a_process_that_ends_after_the_model_leaves_no_calibration_of_the_model_before(tiny_run, saved, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("npmatch.predict.classifier.save_calibration", killed)
    with pytest.raises(KeyboardInterrupt):
        npmatch.load(tiny_run.folder, "cpu").save_pretrained(saved)
    assert npmatch.load(saved, "cpu").calibration is None


def test_a_card_survives_being_saved_again(saved, tmp_path):
    (saved / "README.md").write_text((saved / "README.md").read_text() + "\nPhotographed in Riga.\n")
    npmatch.Classifier.from_pretrained(saved).save_pretrained(tmp_path / "copy")
    assert "Photographed in Riga" in (tmp_path / "copy" / "README.md").read_text()


def test_names_of_classes_cannot_break_the_card():
    names = ("`a`", "<script>alert(1)</script>", "b\n---\nlicense: mit", *map(str, range(100)))
    text = model_card(ModelFacts("npmatch", "cnn", names, 3, 32, 30), "me/model")
    card = huggingface_hub.ModelCard(text)
    assert card.data.eval_results is None
    assert card.data.license is None
    assert "<script>" not in text
    assert "Not measured" in text
    assert "and 53 more" in text


def test_an_estimators_model_can_be_saved(tmp_path, digits):
    X = digits[:, 0].numpy()
    for rows in (X, X.reshape(50, 64) / 100):  # images, and vectors of features, whose network is npmatch's own
        fitted = npmatch.NPMatchClassifier(iterations=2, device="cpu").fit(rows, np.arange(50) % 3)
        fitted.classifier_.save_pretrained(tmp_path / "model")
        again = npmatch.Classifier.from_pretrained(tmp_path / "model", device="cpu")
        pixels = fitted.rows_.pixels(rows.reshape(50, 64))
        assert torch.equal(again.predict(pixels).probs, fitted.classifier_.predict(pixels).probs)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A folder in place of the hub; returns the list of calls with their options."""
    calls = []

    def snapshot_download(repo_id, **options):
        calls.append((repo_id, options))
        return str(tmp_path / "hub" / repo_id)

    class Api:
        def __init__(self, **options):
            calls.append(("api", options))

        def create_repo(self, repo_id, **options):
            calls.append(("create", options))
            return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

        def upload_folder(self, repo_id, folder_path, **options):
            calls.append(("upload", options))
            shutil.copytree(folder_path, tmp_path / "hub" / repo_id)
            return f"https://huggingface.co/{repo_id}/commit/1"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return calls


def test_push_and_fetch(tiny_run, hub, digits, tmp_path):
    model = npmatch.load(tiny_run.folder, "cpu")
    address = model.push_to_hub("me/digits", private=True, token="secret", branch="try")
    assert address == "https://huggingface.co/me/digits/commit/1"
    assert {p.name for p in (tmp_path / "hub" / "me" / "digits").iterdir()} == FILES
    calls = dict(hub)
    assert calls["api"]["token"] == "secret"
    assert calls["create"] == {"private": True, "exist_ok": True}
    assert calls["upload"]["revision"] == "try"
    assert "# me/digits" in (tmp_path / "hub" / "me" / "digits" / "README.md").read_text()
    again = npmatch.Classifier.from_pretrained("me/digits", revision="try", token="secret", device="cpu")
    repo, options = hub[-1]
    assert (repo, options["revision"], options["token"]) == ("me/digits", "try", "secret")
    assert "*.py" not in options["allow_patterns"]
    assert torch.equal(again.predict(digits).probs, model.predict(digits).probs)
    assert model.save_pretrained(tmp_path / "both", repo_id="me/other", push_to_hub=True).endswith("me/other/commit/1")


@pytest.mark.parametrize("field", ["algorithm", "backbone"])
def test_a_strangers_model_may_not_choose_what_runs(saved, hub, tmp_path, field):
    config = json.loads((saved / "config.json").read_text())
    if field == "algorithm":
        config["algorithm"] = "shutil:rmtree"
    else:
        config["backbone_config"]["name"] = "os:system"
    (saved / "config.json").write_text(json.dumps(config))
    shutil.copytree(saved, tmp_path / "hub" / "they" / "theirs")
    with pytest.raises(npmatch.NPMatchError, match="trust_code=True"):
        npmatch.Classifier.from_pretrained("they/theirs")


def test_what_goes_wrong_is_one_line(saved, monkeypatch, tmp_path):
    def unreachable(*arguments, **options):
        raise OSError("Name or service\nnot known")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(npmatch.NPMatchError, match=r"me/gone: neither a folder here nor reachable .*service not known"):
        npmatch.Classifier.from_pretrained("me/gone")
    with pytest.raises(npmatch.NPMatchError, match="cannot be written"):
        npmatch.load(saved).save_pretrained(saved / "config.json" / "below")
    config = json.loads((saved / "config.json").read_text())
    for broken in ([], {**config, "surprise": 1}, {**config, "algorithm_config": {"surprise": 1}}, {"format": 1}):
        (saved / "config.json").write_text(json.dumps(broken))
        with pytest.raises(npmatch.NPMatchError, match=r"config\.json: "):
            npmatch.load(saved)
