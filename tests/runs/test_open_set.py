"""A run on the open set made of CIFAR-10: the vehicles are unlabelled in training and outliers in the evaluation."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import npmatch
from npmatch.cli import main

ANIMALS = range(2, 8)  # labels in CIFAR-10
TINY = {
    "training.iterations": 3,
    "training.batch": 4,
    "training.unlabeled_ratio": 1,
    "training.eval_every": 2,
    "backbone.name": "cnn",
    "backbone.width": 4,
}


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """The binary version of CIFAR-10 with ten images per file, one of each class."""
    folder = tmp_path_factory.mktemp("cifar") / "cifar-10-batches-bin"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pixels = rng.integers(0, 256, (10, 3072), dtype=np.uint8)
        records = np.concatenate([np.arange(10, dtype=np.uint8)[:, None], pixels], 1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


@pytest.mark.parametrize("algorithm", ["openmatch", "fixmatch"])
def test_the_error_is_of_known_classes_and_the_auroc_of_all_test_images(cifar, tmp_path, algorithm, capsys):
    settings = {"out": tmp_path / "run", "algorithm": algorithm, "device": "cpu", "quiet": True, "overrides": TINY}
    run = npmatch.fit("cifar10-open-24", data=cifar.parent, **settings)
    records = np.frombuffer((cifar / "test_batch.bin").read_bytes(), dtype=np.uint8).reshape(10, 3073)
    images, labels = torch.from_numpy(records[:, 1:].reshape(10, 3, 32, 32).copy()), records[:, 0].tolist()
    prediction = npmatch.load(run.folder, device="cpu").predict(images)
    wrong = [int(prediction.label[i]) != label - 2 for i, label in enumerate(labels) if label in ANIMALS]
    assert run.scores["n"] == 6
    assert run.scores["error"] == pytest.approx(100 * sum(wrong) / 6)

    score = prediction.outlier if algorithm == "openmatch" else prediction.entropy
    expected = 100 * roc_auc_score([label not in ANIMALS for label in labels], score)
    assert run.scores["outlier_auroc"] == pytest.approx(expected)
    assert run.records()[-1]["outlier_auroc"] == run.scores["outlier_auroc"]
    assert any("foreign_trusted" in line for line in run.records())

    assert main(["evaluate", str(run.folder), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outlier_auroc"] == pytest.approx(expected)
