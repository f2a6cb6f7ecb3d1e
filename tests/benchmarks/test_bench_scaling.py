"""The scaling benchmark: what a step sends, the speed-up over its first row, and errors in one line."""

import json
import subprocess

import pytest
import torch

from benchmarks.scaling import bench_scaling
from benchmarks.scaling_worker import measure_here
from npmatch.errors import NPMatchError


def test_a_step_sends_what_the_documentation_says(one_rank, tmp_path):
    measure_here(tmp_path / "row.json", 2, torch.device("cpu"), ["digits-40", "backbone.width=4"])
    row = json.loads((tmp_path / "row.json").read_text())
    assert row["collectives"] == 8  # gradients, features, and two for each of three norms
    assert row["ranks"] == 1
    norms, features = 16 * (4 + 8 + 16), 4 * 16 * (32 + 2 * 128)
    assert row["megabytes"] * 1e6 > norms + features
    assert 0 < row["communication_share"] < 1


def test_speed_is_relative_to_the_first_row(monkeypatch):
    rows = {1: 100.0, 2: 60.0}
    monkeypatch.setattr(
        "benchmarks.scaling._measure",
        lambda count, *_: {"ranks": count, "milliseconds": rows[count], "images": 160, "images_per_second": 1.0},
    )
    result = bench_scaling(device="cpu")
    assert result.ratios == {"images/s of 2 / of 1 ranks": pytest.approx(100 / 60)}
    assert result.cells()[1][3] == "1.67"


def test_bad_input_is_an_error_in_one_line(monkeypatch):
    with pytest.raises(NPMatchError, match="--ranks 2: give two numbers or more"):
        bench_scaling(ranks=[2], device="cpu")
    with pytest.raises(NPMatchError, match=r"^training.batch=32: 3 ranks take equal shares; use 30 or 33$"):
        bench_scaling(ranks=[1, 3], device="cpu")
    printed = "Traceback\n    raise NPMatchError(...)\nnpmatch: training.batch=9: use 8 or 10\ntorchrun's lines"
    failed = subprocess.CompletedProcess([], 1, "", printed)
    monkeypatch.setattr("benchmarks.scaling.subprocess.run", lambda *_, **__: failed)
    with pytest.raises(NPMatchError, match=r"^1 rank\(s\) did not run: training.batch=9: use 8 or 10$"):
        bench_scaling(device="cpu")
