"""What version 0.1.0 wrote is read, resumed and predicted with: a finished run, killed ones, and a saved model.

The archive holds folders that 0.1.0 wrote, with `backbone.width=4 algorithm.bank=32` to keep it small:
- finished: `npmatch train digits-40 data.labels=80 data.validation=40 training.iterations=800 …`, without checkpoints;
- killed: the same run, killed after its checkpoint at step 790;
- folder-killed: `npmatch train --data photos training.iterations=60 …`, killed after its checkpoint at step 30, and
  folder-expected.safetensors, the model it ends with;
- features-model: an estimator's model for rows of features, with the probabilities it gave.
"""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import npmatch
from npmatch.runs.folder import RunFolder
from npmatch.training import load_tensors

ARCHIVE = Path(__file__).parent / "fixtures" / "v0.1.0.tar.gz"


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("v0.1.0")
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    return folder


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_tensors(path)[0]


def assert_close(found: Path, expected: Path) -> None:
    """Equal but for the last bits, in which machines differ."""
    ours, theirs = weights(found), weights(expected)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_a_finished_run_is_evaluated_and_predicts_what_it_did(archive):
    run = RunFolder(archive / "finished")
    assert run.is_finished()
    stored, labels, class_names = run.read_test_predictions()
    found = npmatch.evaluate_run(run.path, device="cpu")
    torch.testing.assert_close(found.prediction.probs, stored.probs, rtol=1e-4, atol=1e-5)
    assert torch.equal(found.held_out.labels, labels)
    assert list(found.spec.class_names) == class_names
    assert found.scores["error"] == pytest.approx(run.final_scores()["error"])
    assert found.temperature is not None
    assert npmatch.fit(out=run.path, resume=True, quiet=True).scores == run.final_scores()


def test_a_killed_run_goes_on_and_ends_as_it_would_have(archive):
    run = npmatch.fit(out=archive / "killed", resume=True, quiet=True, device="cpu")
    assert_close(run.folder / "model.safetensors", archive / "finished" / "model.safetensors")
    assert run.scores["error"] == pytest.approx(RunFolder(archive / "finished").final_scores()["error"], abs=0.6)
    assert [r["step"] for r in run.records() if r["kind"] == "train"] == list(range(100, 801, 100))


def test_a_killed_run_on_a_folder_keeps_the_defaults_it_started_with(archive, monkeypatch):
    monkeypatch.chdir(archive)
    words = {"backbone.width": 4, "algorithm.bank": 32, "training.iterations": 60, "training.checkpoint_every": 30}
    again = {"data": "photos", "out": "folder-killed", "resume": True, "quiet": True, "device": "cpu"}
    run = npmatch.fit(**again, overrides=words)
    assert_close(run.folder / "model.safetensors", archive / "folder-expected.safetensors")
    assert RunFolder(run.folder).read_config().algorithm.max_entropy == 0.4


def test_a_saved_model_of_features_says_what_it_said(archive):
    expected = np.load(archive / "features-model" / "expected.npz")
    classifier = npmatch.load(archive / "features-model", device="cpu")
    probs = classifier.predict(torch.from_numpy(expected["pixels"])).probs
    np.testing.assert_allclose(probs.numpy(), expected["probs"], rtol=1e-4, atol=1e-5)
