"""The linear probe beside a run from pretrained weights: its error is logged, shown, and warned of if not beaten."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression

import npmatch
from few_photos import WORDS, save_photos, save_weights
from npmatch.cli import main
from npmatch.config.resolve import resolve_config
from npmatch.data import load_configured, make_split
from npmatch.runs.baseline import pretrained_features, probe_scores
from npmatch.runs.build import build_algorithm, make_spec
from npmatch.runs.folder import RunFolder
from npmatch.training import Display

WARNING = "training has not beaten a linear probe on the pretrained features"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> dict:
    """Settings of a tiny run that starts from weights in a file."""
    return {**WORDS, **save_weights(tmp_path_factory.mktemp("weights") / "cnn.pt")}


def fit(photos, out, settings, **changes):
    settings = {**settings, **{key.replace("__", "."): value for key, value in changes.items()}}
    return npmatch.fit(data=photos, out=out, device="cpu", quiet=True, overrides=settings)


def test_features_are_those_of_the_network_before_its_first_step(pretrained, tmp_path):
    photos = save_photos(tmp_path / "photos", test=3)
    settings = {**pretrained, "augment.crop": "resized", "augment.size": 6, "training.eval_batch": 4}
    config = resolve_config(data=photos, overrides=settings, device="cpu")
    dataset = load_configured(config.data)
    split, cpu = make_split(dataset, None, 0), torch.device("cpu")
    found = pretrained_features(config, dataset, split, dataset.train.images, cpu)
    model = build_algorithm(config, dataset, split, cpu).model.eval()
    spec = make_spec(config, dataset, split)
    pixels = dataset.train.images.take(torch.arange(len(dataset.train)))[..., 1:7, 1:7] / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (spec.mean, spec.std))
    with torch.no_grad():
        expected = model.features((pixels - mean) / std)
    assert len(found) == 12
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_error_of_scikit_learns_regression_stands_beside_the_runs_own(pretrained, tmp_path, capsys):
    photos = save_photos(tmp_path / "photos", classes="abc", labels=3, test=8)
    run = fit(photos, tmp_path / "run", pretrained, training__learning_rate=1e-9)
    config = RunFolder(run.folder).read_config()
    assert config.backbone.pretrained is True
    dataset = load_configured(config.data)
    split, cpu = make_split(dataset, None, 0), torch.device("cpu")
    x, x_test = (pretrained_features(config, dataset, split, i.images, cpu) for i in (dataset.train, dataset.test))
    probe = LogisticRegression(C=300, max_iter=1000)
    x, x_test = (torch.nn.functional.normalize(f, dim=-1).numpy() for f in (x, x_test))
    probe.fit(x[split.labeled], dataset.train.labels[split.labeled])
    error = 100 * (probe.predict(x_test) != dataset.test.labels.numpy()).mean()
    assert run.scores["probe_error"] == pytest.approx(error)
    assert RunFolder(run.folder).final_scores()["probe_error"] == run.scores["probe_error"]

    # Nothing was learnt, so the probe is better: the terminal and the report say so, also when it is written again.
    assert run.scores["error"] > error
    assert f"{WARNING}: {run.scores['error']:.1f} % error, the probe {error:.1f} %" in capsys.readouterr().err
    report = run.folder / "report.html"
    page = report.read_text(encoding="utf-8")
    assert WARNING in page
    assert f"<span>Linear probe</span><b>{error:.1f} %</b>" in page
    report.unlink()
    assert main(["report", str(run.folder)]) == 0
    assert report.read_text(encoding="utf-8") == page


def test_without_test_images_the_error_is_estimated_from_the_labels(pretrained, tmp_path, capsys):
    photos = save_photos(tmp_path / "photos", test=0)
    run = npmatch.fit(data=photos, out=tmp_path / "run", device="cpu", overrides=pretrained)
    assert "error" not in run.scores
    assert run.scores["probe_error_estimated"] == 0  # light against dark
    assert "about 0.0 % error, estimated out of fold from labels" in capsys.readouterr().err.replace("\n", " ")


def test_held_out_labels_are_test_images_to_the_probe_too(pretrained, tmp_path):
    photos = save_photos(tmp_path / "photos", labels=6, test=0)
    config = resolve_config(data=photos, overrides={**pretrained, "data.validation": 0.5}, device="cpu")
    dataset = load_configured(config.data)
    split = make_split(dataset, None, 0, 0.5)
    assert probe_scores(config, dataset, split, torch.device("cpu"), Display("", 0, True)) == {"probe_error": 0}


def test_one_label_per_class_allows_no_estimate(pretrained, tmp_path):
    photos = save_photos(tmp_path / "photos", labels=1, test=0)
    config = resolve_config(data=photos, overrides=pretrained, device="cpu")
    dataset = load_configured(config.data)
    assert probe_scores(config, dataset, make_split(dataset, None, 0), torch.device("cpu"), Display("", 0, True)) == {}


def test_a_run_from_random_weights_has_no_probe(tiny_run):
    assert not any(key.startswith("probe") for key in tiny_run.scores)
    assert "Linear probe" not in (tiny_run.folder / "report.html").read_text(encoding="utf-8")
