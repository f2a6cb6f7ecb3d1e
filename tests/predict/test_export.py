"""The exported file in onnxruntime, without npmatch, against `predict`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import npmatch
from npmatch.algorithms import ALGORITHMS
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.backbones.small import SmallCNN
from npmatch.cli import main
from npmatch.data import load_dataset
from npmatch.decide import Calibration
from npmatch.predict.export import export_onnx
from npmatch.predict.saved import ModelSpec
from npmatch.types import Task
from tiny import train_tiny

onnxruntime = pytest.importorskip("onnxruntime")
DOCS = Path(__file__).parents[2] / "docs"


def made_up(algorithm: str = "fixmatch", channels: int = 3, stored_side: int = 12, side: int = 8, backbone=None):
    """A classifier with random weights."""
    torch.manual_seed(0)
    names = ("ape", "bär", "<cat>")
    spec = ModelSpec(algorithm, {}, {}, names, channels, stored_side, side, (0.4,) * channels, (0.2,) * channels, 6)
    cls = ALGORITHMS[algorithm]
    backbone = backbone if backbone is not None else SmallCNN(4, in_channels=channels)
    model = cls.make_model(backbone, Task(names, 6, 0), cls.Config())
    return npmatch.Classifier(model, spec, torch.device("cpu"))


def test_the_runs_temperature_is_in_the_file(tmp_path):
    classifier, path, images = made_up("npmatch"), tmp_path / "model.onnx", _seeded(30)
    raw = classifier.predict(images)
    classifier.calibration = Calibration(raw, torch.arange(30) % 3, temperature=2.5)
    assert export_onnx(classifier, path) <= 1e-4
    p = raw.probs.double() ** (1 / 2.5)
    p = (p / p.sum(-1, keepdim=True)).numpy()
    found = run_file(path, images)
    np.testing.assert_allclose(found["probabilities"], p, atol=1e-5)
    np.testing.assert_allclose(found["entropy"], -(p * np.log(p)).sum(-1), atol=1e-5)
    assert found["probabilities"].dtype == found["entropy"].dtype == np.float32
    np.testing.assert_allclose(found["disagreement"], raw.disagreement.numpy(), atol=1e-5)
    about = onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map
    assert about["temperature"] == "2.5000, applied inside; fitted on 30 held-out labels"


def run_file(path: Path, images: torch.Tensor, batch: int = 256) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    parts = [session.run(None, {"images": part.numpy()}) for part in images.split(batch)]
    return {name: np.concatenate(values) for name, values in zip(names, zip(*parts, strict=True), strict=True)}


def assert_agrees(found: dict[str, np.ndarray], wanted: npmatch.Prediction) -> None:
    assert np.abs(found["probabilities"] - wanted.probs.numpy()).max() < 1e-4
    assert np.abs(found["entropy"] - wanted.entropy.numpy()).max() < 1e-4
    assert ("disagreement" in found) == (wanted.disagreement is not None)
    if wanted.disagreement is not None:
        assert np.abs(found["disagreement"] - wanted.disagreement.numpy()).max() < 1e-4
    assert ("outlier" in found) == (wanted.outlier is not None)
    if wanted.outlier is not None:
        assert np.abs(found["outlier"] - wanted.outlier.numpy()).max() < 1e-4


@pytest.mark.parametrize("algorithm", ["npmatch", "fixmatch", "ups", "iomatch"])
def test_a_thousand_images_agree_with_predict(algorithm, tiny_run, tmp_path, capsys):
    folder = tiny_run.folder if algorithm == "npmatch" else train_tiny(tmp_path / "run", algorithm=algorithm).folder
    out = tmp_path / "made" / "model.onnx"
    capsys.readouterr()
    assert main(["export", str(folder), "--format", "onnx", "-o", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["largest_difference"] <= 1e-4
    assert printed["bytes"] == out.stat().st_size
    images = load_dataset("digits").train.images.pixels[:1000]
    wanted = npmatch.load(folder, "cpu").predict(images)
    assert wanted.entropy.std() > 0, "the images differ, or the comparison says little"
    assert_agrees(run_file(out, images, batch=300), wanted)
    assert_agrees(run_file(out, images[:3], batch=1), npmatch.Prediction.cat([_rows(wanted, slice(0, 3))]))


def _rows(p: npmatch.Prediction, rows: slice) -> npmatch.Prediction:
    optional = (None if one is None else one[rows] for one in (p.disagreement, p.outlier))
    return npmatch.Prediction(p.probs[rows], p.entropy[rows], *optional)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithms_model_exports(algorithm, tmp_path):
    assert export_onnx(made_up(algorithm), tmp_path / "model.onnx") <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side"), [("wrn-28-2", 32), ("timm:resnet18", 64), ("timm:vit_tiny_patch16_224", 224)]
)
def test_every_kind_of_backbone_exports(name, side, tmp_path):
    classifier = made_up(stored_side=side, side=side, backbone=make_backbone(BackboneConfig(name), 3))
    assert export_onnx(classifier, tmp_path / "model.onnx") <= 1e-4


def test_the_file_says_what_it_is_and_names_no_place_on_this_machine(tmp_path, capfd):
    classifier, path = made_up(), tmp_path / "model.onnx"
    assert export_onnx(classifier, path) <= 1e-4
    assert capfd.readouterr() == ("", ""), "a library call is quiet"
    session = onnxruntime.InferenceSession(str(path))
    (taken,) = session.get_inputs()
    assert (taken.name, taken.type, taken.shape) == ("images", "tensor(uint8)", ["batch", 3, 12, 12])
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == ["ape", "bär", "<cat>"]
    assert about["image_size"] == "12"
    assert "middle 8 × 8" in about["input"]
    assert about["randomness"] == "none"
    content = path.read_bytes()
    assert str(Path(npmatch.__file__).parent).encode() not in content
    assert b"site-packages" not in content
    assert_agrees(run_file(path, _seeded(5)), classifier.predict(_seeded(5)))


def _seeded(n: int) -> torch.Tensor:
    torch.manual_seed(7)
    return torch.randint(256, (n, 3, 12, 12)).byte()


def test_a_file_that_disagrees_is_not_written(tmp_path, monkeypatch, tiny_run, capsys):
    monkeypatch.setattr("npmatch.predict.export.onnx_bytes", lambda classifier: b"some model")
    monkeypatch.setattr("npmatch.predict.export.largest_difference", lambda content, classifier: float("nan"))
    out = tmp_path / "model.onnx"
    assert main(["export", str(tiny_run.folder), "-o", str(out)]) == 2
    error = capsys.readouterr().err
    assert "differs from predict" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_backbone_that_cannot_be_traced_is_one_line(tmp_path):
    class Asks(nn.Module):
        num_features = 3

        def forward(self, x):
            return x.mean((2, 3)) if x.sum() > 3 else x.amax((2, 3))

    with pytest.raises(npmatch.NPMatchError, match="cannot turn this backbone into an ONNX graph"):
        export_onnx(made_up(backbone=Asks()), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_missing_packages_and_formats_are_named(tmp_path, monkeypatch, tiny_run, capsys):
    assert main(["export", str(tiny_run.folder), "--format", "onx"]) == 2
    assert "did you mean 'onnx'?" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nowhere")]) == 2
    assert "no such run" in capsys.readouterr().err
    monkeypatch.setattr("npmatch.predict.export.find_spec", lambda name: None)
    assert main(["export", str(tiny_run.folder), "-o", str(tmp_path / "m.onnx"), "--no-check"]) == 2
    assert "needs onnx, onnxscript; run pip install 'npmatch[export]'" in capsys.readouterr().err


def test_the_example_in_the_docs_needs_no_npmatch_and_says_what_predict_says(tiny_run, tmp_path):
    """docs/export.md's program on pictures of odd shapes, in a process of its own."""
    (source,) = re.findall(
        r"```python\n(# classify.*?)```", (DOCS / "export.md").read_text(encoding="utf-8"), re.DOTALL
    )
    (tmp_path / "classify.py").write_text(source + "\nassert not {'torch', 'npmatch'} & set(sys.modules)\n")
    export_onnx(npmatch.load(tiny_run.folder, "cpu"), tmp_path / "model.onnx", check=False)
    pixels = load_dataset("digits").test.images.pixels[:4, 0].numpy()
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for path, image, size in zip(paths, pixels, [(8, 8), (31, 20), (17, 40), (9, 9)], strict=True):
        Image.fromarray(image).resize(size).convert("RGB").save(path)
    command = [sys.executable, "classify.py", "model.onnx", *(path.name for path in paths)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    wanted = npmatch.load(tiny_run.folder, "cpu").predict(paths)
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line, path, label, confidence, entropy in zip(
        lines, paths, wanted.label.tolist(), wanted.confidence, wanted.entropy, strict=True
    ):
        name, predicted, probability, uncertainty = line.split()
        assert (name, predicted) == (path.name, str(label))
        assert float(probability) == pytest.approx(float(confidence), abs=2e-3)
        assert float(uncertainty) == pytest.approx(float(entropy), abs=2e-3)
