"""The load test on a page of its own: every request is accounted for, and memory stays flat."""

import shutil

import pytest

from benchmarks.serve import FLOOD, bench_serve
from npmatch.errors import NPMatchError


def test_every_request_is_answered_or_refused_and_memory_is_flat(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run.folder, tmp_path / "run")
    result = bench_serve(run, requests=120, clients=8, device="cpu")
    *stretches, flood = result.rows
    assert sum(row["answered"] for row in stretches) == 120, "below the limit nobody is refused"
    assert all(row["failed"] == 0 for row in result.rows)
    assert flood["answered"] + flood["refused"] == 4 * FLOOD
    assert flood["answered"] > 0
    assert flood["refused"] > 0, "beyond it some are"
    assert result.ratios["memory: after / before"] < 1.1


def test_a_run_that_is_none_is_one_line(tmp_path):
    with pytest.raises(NPMatchError, match="no such run"):
        bench_serve(tmp_path, requests=1, clients=1)
