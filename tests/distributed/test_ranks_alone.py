"""A group of one rank: collectives are called and change nothing, and what they send is counted."""

import json
import subprocess

import pytest
import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import nn

from benchmarks.scaling import bench_scaling
from benchmarks.scaling_worker import measure_here
from npmatch.distributed.collective import all_gather_parts, all_reduce_mean_, local_rows, traffic
from npmatch.distributed.ranks import (
    all_gather_object,
    all_reduce_max,
    is_rank_zero,
    launcher_id,
    on_rank_zero,
    world_size,
)
from npmatch.errors import NPMatchError
from npmatch.heads import SyncNorm, frozen_statistics, synchronise_norms
from npmatch.runs.fit import fit


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    traffic.clear()
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm2d(3, momentum=0.3), lambda: BatchNormAct2d(3)])
def test_a_synchronised_norm_is_the_norm_it_replaces(alone, make):
    torch.manual_seed(0)
    plain = nn.Sequential(make()).double()
    with torch.no_grad():
        plain[0].weight.uniform_(0.5, 2)
        plain[0].bias.normal_()
    synchronised = nn.Sequential(make()).double()
    synchronised.load_state_dict(plain.state_dict())
    synchronise_norms(synchronised)
    assert isinstance(synchronised[0], SyncNorm)
    for training in (True, True, False):
        x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
        results = []
        for network in (plain, synchronised):
            network.train(training)
            network.zero_grad()
            given = x.clone().requires_grad_()
            y = network(given)
            y.square().sin().sum().backward()
            results.append([y, given.grad, network[0].weight.grad, network[0].bias.grad])
        torch.testing.assert_close(*results)
    torch.testing.assert_close(synchronised.state_dict(), plain.state_dict())
    before = {name: value.clone() for name, value in synchronised.state_dict().items()}
    with frozen_statistics(synchronised.train()):
        synchronised(torch.randn(5, 3, 4, 4, dtype=torch.float64))
    torch.testing.assert_close(dict(synchronised.state_dict()), before)


def test_a_norm_with_a_way_of_its_own_is_refused():
    class Strange(nn.BatchNorm2d):
        pass

    with pytest.raises(NPMatchError, match=r"Strange.*sync_norm=false"):
        synchronise_norms(nn.Sequential(Strange(3)))


def test_words_are_the_identity_and_are_counted(alone):
    rows = torch.randn(6, 2, requires_grad=True)
    first, second = all_gather_parts(rows, [2, 4])
    assert torch.equal(torch.cat([first, second]), rows)
    (2 * first.sum() + 3 * second.sum()).backward()
    assert rows.grad[:, 0].tolist() == [2, 2, 3, 3, 3, 3]
    assert torch.equal(local_rows(rows), rows)
    held = [torch.randn(3, 4), torch.randn(())]
    kept = [t.clone() for t in held]
    all_reduce_mean_(held)
    torch.testing.assert_close(held, kept)
    assert (traffic.collectives, traffic.sent) == (2, 6 * 2 * 4 + 13 * 4)
    assert (world_size(), is_rank_zero(), all_reduce_max(7), all_gather_object("a"), on_rank_zero(lambda: 3)) == (
        1,
        True,
        7,
        ["a"],
        3,
    )


def test_a_step_sends_what_the_documentation_says(alone, tmp_path):
    measure_here(tmp_path / "row.json", 2, torch.device("cpu"), ["digits-40", "backbone.width=4"])
    row = json.loads((tmp_path / "row.json").read_text())
    assert row["collectives"] == 8  # gradients, features, and two for each of three norms
    assert row["ranks"] == 1
    norms, features = 16 * (4 + 8 + 16), 4 * 16 * (32 + 2 * 128)
    assert row["megabytes"] * 1e6 > norms + features
    assert 0 < row["communication_share"] < 1


def test_the_bench_compares_with_its_first_row(monkeypatch):
    rows = {1: 100.0, 2: 60.0}
    monkeypatch.setattr(
        "benchmarks.scaling._measure",
        lambda count, *_: {"ranks": count, "milliseconds": rows[count], "images": 160, "images_per_second": 1.0},
    )
    result = bench_scaling(device="cpu")
    assert result.ratios == {"images/s of 2 / of 1 ranks": pytest.approx(100 / 60)}
    assert result.cells()[1][3] == "1.67"


def test_the_bench_refuses_in_one_line(monkeypatch):
    with pytest.raises(NPMatchError, match="--ranks 2: give two numbers or more"):
        bench_scaling(ranks=[2], device="cpu")
    with pytest.raises(NPMatchError, match=r"^training.batch=32: 3 ranks take equal shares; use 30 or 33$"):
        bench_scaling(ranks=[1, 3], device="cpu")
    told = "Traceback\n    raise NPMatchError(...)\nnpmatch: training.batch=9: use 8 or 10\ntorchrun's lines"
    failed = subprocess.CompletedProcess([], 1, "", told)
    monkeypatch.setattr("benchmarks.scaling.subprocess.run", lambda *_, **__: failed)
    with pytest.raises(NPMatchError, match=r"^1 rank\(s\) did not run: training.batch=9: use 8 or 10$"):
        bench_scaling(device="cpu")


def test_a_batch_that_does_not_divide_is_refused_before_a_look_at_the_images(monkeypatch, tmp_path):
    monkeypatch.setattr("npmatch.runs.fit.world_size", lambda: 2)
    monkeypatch.setattr("npmatch.runs.fit.load_configured", lambda _: pytest.fail("looked"))
    with pytest.raises(NPMatchError, match=r"training\.batch=15: 2 ranks take equal shares; use 14 or 16"):
        fit("digits-40", out=tmp_path / "run", device="cpu", overrides={"training.batch": 15}, quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_torchrun_is_known_again_over_its_restarts(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launcher_id() == ""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # which every torchrun may be called
    known = []
    for folder in ("/tmp/a/none_x/attempt_0", "/tmp/a/none_x/attempt_1", "/tmp/b/none_y/attempt_0"):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", f"{folder}/0/error.json")
        known.append(launcher_id())
    assert known[0] == known[1] != known[2]
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    assert launcher_id() == launcher_id() != ""
