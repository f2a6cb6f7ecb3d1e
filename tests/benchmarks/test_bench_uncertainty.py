"""Predictions with uncertainty: both forms of MC dropout are one estimate, and every T has its row."""

import pytest
import torch

from benchmarks.uncertainty import bench_uncertainty, plot_uncertainty, predict_copies, predictors
from npmatch.backbones.small import SmallCNN
from npmatch.heads import MCDropout, MCDropoutModel


def test_copies_and_passes_estimate_the_same():
    torch.manual_seed(0)
    model = MCDropoutModel(SmallCNN(4, 1, 3), 5, dropout=0.4, samples=800).eval()
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        passes = model(x)
        for module in model.modules():
            if isinstance(module, MCDropout):
                module.train()
        copies = predict_copies(model, x, 800)
    torch.testing.assert_close(copies.probs, passes.probs, rtol=0, atol=0.03)
    torch.testing.assert_close(copies.disagreement, passes.disagreement, rtol=0.3, atol=0.01)
    assert copies.disagreement.min() > 0.001


def test_every_way_gives_probabilities_of_its_own_samples():
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        predictions = {key: predict(x) for key, predict in predictors("cnn", 3, torch.device("cpu"), "float32").items()}
    assert all(p.probs.shape == (2, 10) for p in predictions.values())
    assert predictions["plain"].disagreement is None
    assert all(predictions[key].disagreement is not None for key in ("npmatch", "kernel", "passes", "batch"))
    assert predictions["kernel"].outlier is not None


def test_a_row_for_every_number_of_samples(tmp_path, capsys):
    result = bench_uncertainty("cpu", steps=False, rounds=1, networks=("cnn",), samples=(1, 10))
    assert [row["samples"] for row in result.rows] == [1, 10]
    row = result.rows[1]
    ratio = pytest.approx(row["npmatch_ms"] / row["plain_ms"])
    assert result.ratios["cnn, T = 10, eager: NP-Match / plain forward"] == ratio
    to_paper = pytest.approx(row["kernel_ms"] / row["npmatch_ms"])
    assert result.ratios["cnn, T = 10, eager: kernel process / NP-Match"] == to_paper
    assert "cnn, T = 10, eager" in capsys.readouterr().err
    plot_uncertainty(result, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
