"""The benchmark of --abstain, on runs too small to be any good."""

import json

import pytest
import torch

import npmatch
from benchmarks import abstention
from benchmarks.command_line import run
from tiny import train_tiny


def test_a_row_for_every_seed_that_finished(tmp_path, capsys, monkeypatch):
    def in_this_process(recipe, *, out, seeds, overrides, algorithms, **rest):
        assert (recipe, algorithms, overrides) == (
            "digits-40",
            "supervised",
            ["training.batch=8", "data.validation=60"],
        )
        for seed in range(seeds - 1):  # the last one fails
            folder = out / "supervised" / f"seed-{seed}"
            changes = {"data__validation": 60, "training__iterations": 60, "training__ema": 0.8}
            train_tiny(folder, seed=seed, algorithm="supervised", **changes)

    monkeypatch.setattr("benchmarks.abstention.compare", in_this_process)
    words = ["digits-40", "--algorithm", "supervised", "--seeds", "2", "--held-out", "60"]
    words += ["--abstain", "0.8", "--out", str(tmp_path / "bench"), "--json", "--device", "cpu", "training.batch=8"]
    assert run(abstention.main, words) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert "1 of 2 runs finished" in found["notes"][0]
    folder = tmp_path / "bench" / "supervised" / "seed-0"
    decided = npmatch.load(folder).decide(npmatch.evaluate_run(folder).held_out.images.pixels, abstain=0.8)
    wrong = decided.prediction.label != npmatch.evaluate_run(folder).held_out.labels
    kept = ~decided.withheld
    assert row["kept"] == pytest.approx(100 * kept.float().mean().item())
    assert row["kept"] > 0
    assert row["kept_error"] == pytest.approx(100 * wrong[kept].float().mean().item())
    assert row["holds"] == (row["kept_error"] <= 80)
    assert torch.tensor(row["error"]).isfinite()


def test_too_few_are_refused_before_anything_is_trained(tmp_path, capsys):
    words = ["digits-40", "--held-out", "30", "--out", str(tmp_path / "bench")]
    assert run(abstention.main, words) == 2
    assert "needs at least 45" in capsys.readouterr().err
    assert not (tmp_path / "bench").exists()
