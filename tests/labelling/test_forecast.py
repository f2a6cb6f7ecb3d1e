"""Forecasts: fewer errors with more labels, a band that knows what it does not know, and a limit of four times."""

import json

import numpy as np
import pytest
import torch

import npmatch
from few_photos import WORDS, save_photos
from npmatch.baselines import BASELINES
from npmatch.cli import main
from npmatch.labelling.forecast import (
    Today,
    class_gains,
    compressed,
    curve_of_heads,
    forecast_from,
    is_general,
)
from npmatch.metrics.learning_curve import prior_curve


def clusters(of_each, spread=0.6, classes=4, seed=0, dimensions=64):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(classes).repeat_interleave(of_each)
    centres = torch.randn(classes, dimensions, generator=torch.Generator().manual_seed(1))
    return centres[y] + spread * 8 * torch.randn(len(y), dimensions, generator=generator) / 2, y


def test_compressed_features_give_the_same_heads():
    (f, y), (g, _) = clusters(4), clusters(30, seed=5)
    few, scored = compressed(f, (g, y))
    assert few.shape[1] == len(f) + 1
    plain = BASELINES["probe"].predict(f, y, g, 4, f[:0]).probs
    same = BASELINES["probe"].predict(few, y, scored[0], 4, few[:0]).probs
    assert float((plain - same).abs().max()) < 0.02
    assert float((plain.argmax(-1) != same.argmax(-1)).double().mean()) < 0.02


def test_errors_fall_and_a_measured_error_makes_the_band_narrower():
    f, y = clusters(8)
    curve = curve_of_heads(f, y)
    sure, unsure = (forecast_from(curve, Today(0.3, n, ""), 32, (64, 128)) for n in (5000, 0))
    for found in (sure, unsure):
        first, second = found.expected
        assert 0.3 > first.error > second.error > 0
        assert first.low < first.error < first.high
    assert sure.expected[0].high - sure.expected[0].low < unsure.expected[0].high - unsure.expected[0].low


def test_labels_that_say_nothing_are_named_so():
    f, y = clusters(1)
    assert is_general(curve_of_heads(f, y))
    found = forecast_from(prior_curve(), Today(0.2, 100, ""), 4, (8,))
    assert any("learning curves in general" in line for line in found.remarks)


def test_classes_that_are_told_apart_gain_nothing_and_one_of_two_kinds_pays():
    f, y = torch.eye(4).repeat_interleave(6, 0), torch.arange(4).repeat_interleave(6)
    assert {one.gain for one in class_gains(f, y, "abcd", (f, y))} == {0.0}
    # Class d comes in two kinds. Half of its labels may miss one of them, which then looks like a.
    kinds = torch.eye(5)
    f = torch.cat([kinds[[0, 1, 2]].repeat_interleave(6, 0), kinds[[3]], 0.9 * kinds[[4]] + 0.5 * kinds[[0]]])
    y = torch.tensor([0] * 6 + [1] * 6 + [2] * 6 + [3, 3])
    gains = class_gains(f, y, "abcd", (f, y))
    assert gains[0].name == "d"
    assert gains[0].gain > 0
    alone = class_gains(f[:-1], y[:-1], "abcd", (f, y))
    assert (alone[-1].name, alone[-1].gain, alone[-1].labels) == ("d", None, 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("forecast")
    photos = save_photos(place / "photos", unlabeled=10, labels=6, test=6)
    npmatch.fit(data=photos, out=place / "run", overrides=WORDS, quiet=True, device="cpu")
    return place / "run"


def test_a_run_is_forecast_from_the_command_line(run, capsys):
    capsys.readouterr()
    assert main(["forecast", str(run), "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["labels"] == 12
    assert [one["labels"] for one in found["expected"]] == [24, 48]
    assert found["source"] == "measured on 12 held-out images"
    assert {one["name"] for one in found["classes"]} == {"a", "b"}
    assert json.loads((run / "forecast.json").read_text()) == found
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "Expected error against the number of labels" in page
    assert "With 24 labels" in page
    (run / "forecast.json").write_text('{"expected": 3}')
    assert main(["report", str(run)]) == 0
    assert "With 24 labels" not in (run / "report.html").read_text()


@pytest.mark.parametrize(("labels", "message"), [(49, "beyond 4 times the labels, 48"), (12, "12 labels already")])
def test_numbers_that_nothing_is_known_about_are_refused(run, capsys, labels, message):
    capsys.readouterr()
    assert main(["forecast", str(run), "--labels", str(labels)]) == 2
    assert message in capsys.readouterr().err


def test_the_measured_error_is_no_surer_than_its_sample():
    generator = np.random.default_rng(0)
    samples = Today(0.1, 100, "").samples(generator, 20000)
    assert samples.mean() == pytest.approx(0.104, abs=0.002)
    assert samples.std() == pytest.approx(0.03, abs=0.002)
