"""A few real steps on real CIFAR-10, where its official files are found under $NPMATCH_DATA."""

import math
import os

import pytest

import npmatch


@pytest.mark.slow
def test_a_few_steps_on_real_cifar10(tmp_path):
    if "NPMATCH_DATA" not in os.environ:
        pytest.skip("NPMATCH_DATA is not set")
    run = npmatch.fit(
        "cifar10-250",
        out=tmp_path / "run",
        quiet=True,
        overrides={
            "training.iterations": 4,
            "training.batch": 16,
            "training.unlabeled_ratio": 3,
            "training.log_every": 1,
        },
    )
    assert run.scores["n"] == 10_000
    assert 80 < run.scores["error"] < 95, "four steps from scratch are hardly better than chance"
    losses = [r["loss"] for r in run.records() if r["kind"] == "train"]
    assert len(losses) == 4
    assert all(map(math.isfinite, losses))
    assert npmatch.load(run.folder).class_names[3] == "cat"
