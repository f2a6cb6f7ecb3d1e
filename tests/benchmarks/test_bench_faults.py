"""Runs that are killed and resumed end as an undisturbed one; and the benchmark can tell when they do not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import faults
from npmatch.training import Checkpoints, Update
from starting import run_together

SETTINGS = [
    "training.checkpoint_every=4", "training.log_every=5", "training.eval_every=10", "training.batch=8",
    "training.unlabeled_ratio=2", "backbone.width=4",
]  # fmt: skip


def bench(rounds: int) -> dict:
    return faults.bench_faults(rounds, iterations=24, kills=2, jobs=2, settings=SETTINGS, seed=3).asdict()


def bench_both(path: Path) -> None:
    """Writes the results of runs as they are and of runs that forget their momentum."""
    whole = bench(rounds=2)
    Update.load_state_dict = lambda self, state: None  # a resumed run has no momentum
    faults.draw_deaths = lambda plan, number: [faults.Death(faults.FAULTS[2], 2.9)]
    path.write_text(json.dumps({"whole": whole, "forgetful": bench(rounds=1)}))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("faults") / "results.json"
    run_together(bench_both, [(path,)], seconds=600)  # in a process of its own, because the benchmark forks
    return json.loads(path.read_text())


def share_of_same_rounds(result: dict) -> float:
    (share,) = result["ratios"].values()
    return share


def test_killed_runs_end_as_the_undisturbed_one(results):
    assert share_of_same_rounds(results["whole"]) == 1.0, results["whole"]["notes"]
    assert sum(row["times"] for row in results["whole"]["rows"]) >= 2


def test_a_run_that_forgets_its_momentum_is_found_out(results):
    assert share_of_same_rounds(results["forgetful"]) < 1


def test_a_death_in_a_write_leaves_the_checkpoint_before_it_or_the_whole_new_one(tmp_path):
    program = """
import os, sys, torch
from pathlib import Path
from benchmarks.faults import die_in_a_write
from npmatch.training import Checkpoints
for share in sys.argv[2:]:
    if os.fork() == 0:
        die_in_a_write(2, float(share))
        folder = Path(sys.argv[1]) / share
        for step in (5, 10, 15):
            Checkpoints(folder).save(step, {"model": {"w": torch.full((9,), float(step))}})
    assert os.wait()[1] == 9
"""
    shares = {"0.0": 5, "0.5": 5, "0.999": 5, "1.1": 10}
    subprocess.run([sys.executable, "-c", program, str(tmp_path), *shares], check=True)
    for share, expected in shares.items():
        step, parts = Checkpoints(tmp_path / share).load_latest(pytest.fail)
        assert step == expected
        assert parts["model"]["w"].tolist() == [expected] * 9
