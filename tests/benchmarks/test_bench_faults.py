"""Runs that are killed and resumed end as an undisturbed one; and the benchmark can tell when they do not."""

import json
import subprocess
import sys

import pytest

from npmatch.training import Checkpoints

SMALL = """
import json, sys
from benchmarks import faults
settings = ["training.checkpoint_every=4", "training.log_every=5", "training.eval_every=10", "training.batch=8",
            "training.unlabeled_ratio=2", "backbone.width=4"]
if sys.argv[1] == "forgetful":  # momentum is left out of what a run takes up
    from npmatch.training.update import Update
    Update.load_state_dict = lambda self, state: None
    faults.draw_deaths = lambda plan, number: [faults.Death(faults.FAULTS[2], 2.9)]
result = faults.bench_faults(rounds=2, iterations=24, kills=2, jobs=2, settings=settings, seed=3)
print(json.dumps(result.asdict()))
"""


def run_small(how: str) -> dict:
    done = subprocess.run([sys.executable, "-c", SMALL, how], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def share_of_same_rounds(result: dict) -> float:
    (share,) = result["ratios"].values()
    return share


def test_killed_runs_end_as_the_undisturbed_one():
    result = run_small("whole")
    assert share_of_same_rounds(result) == 1.0, result["notes"]
    assert sum(row["times"] for row in result["rows"]) >= 2


def test_a_run_that_forgets_its_momentum_is_found_out():
    assert share_of_same_rounds(run_small("forgetful")) < 1


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
