"""The simulated labelling loop: its bookkeeping, not its figures."""

import json

import numpy as np
import pytest
import torch

from benchmarks.command_line import run
from benchmarks.labelling import bench_labelling, digits_config, main, make_row, rounds, train_first
from npmatch.data import load_configured, make_split
from npmatch.errors import NPMatchError

CPU = torch.device("cpu")


def test_the_loop_gives_errors_of_every_round_and_the_area_under_them(capsys, tmp_path):
    plot = tmp_path / "curve.svg"
    words = ["--seeds", "1", "--to", "20", "--iterations", "1", "--json", "--plot", str(plot), "--device", "cpu"]
    assert run(main, words) == 0
    found = json.loads(capsys.readouterr().out)
    by_strategy = {row["strategy"]: row for row in found["rows"] if row["seed"] == "0"}
    assert list(by_strategy) == ["random", "uncertainty", "uncertainty + diversity"]
    assert len({row["error_10"] for row in by_strategy.values()}) == 1  # one first model for all
    for row in by_strategy.values():
        assert row["area"] == pytest.approx((row["error_10"] + row["error_20"]) / 2)
    ratio = by_strategy["uncertainty"]["area"] / by_strategy["random"]["area"]
    assert found["ratios"]["area: uncertainty / random"] == pytest.approx(ratio)
    assert all(name in plot.read_text() for name in by_strategy)


@pytest.mark.parametrize("strategy", ["random", "diverse"])
def test_rounds_add_labels_and_go_on_from_the_weights_before(strategy):
    config = digits_config(seed=3, iterations=1)
    dataset = load_configured(config.data)
    first = train_first(config, dataset, make_split(dataset, 10, 3), CPU)
    one, two = rounds(config, dataset, first, strategy, 5, 2, CPU)
    sets = [set(r.split.labeled.tolist()) for r in (first, one, two)]
    assert [len(s) for s in sets] == [10, 15, 20]
    assert sets[0] < sets[1] < sets[2]
    (again,) = rounds(config, dataset, first, strategy, 5, 1, CPU)
    assert all(torch.equal(again.state[name], tensor) for name, tensor in one.state.items())
    name = "model.backbone.convs.0.weight"  # one step away from the weights before, far from fresh ones
    moved = (one.state[name] - first.state[name]).norm()
    other = (one.state[name] - train_first(digits_config(4, 1), dataset, first.split, CPU).state[name]).norm()
    assert 0 < moved < 0.2 * other


def test_the_area_is_the_mean_height_of_the_curve():
    errors = [40.0, 21.0, 9.0, 8.0]
    row = make_row("random", "0", [10, 20, 30, 40], errors)
    assert row["area"] == pytest.approx(np.trapezoid(errors, [10, 20, 30, 40]) / 30)


def test_a_loop_without_a_round_is_refused():
    with pytest.raises(NPMatchError, match="makes no second round"):
        bench_labelling(1, 10, 15, 10)
