"""Runs under torchrun: a killed rank, NCCL on one GPU, two hosts with a network between them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from npmatch.runs.folder import RunFolder
from npmatch.training import load_tensors

SETTINGS = [
    "digits-40", "--device", "cpu", "training.iterations=200", "training.batch=8", "training.unlabeled_ratio=2",
    "training.log_every=5", "training.eval_every=100", "training.checkpoint_every=10", "backbone.width=4",
]  # fmt: skip


def torchrun(*words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def children(parent: int) -> list[int]:
    """The child processes of `parent`, from /proc."""
    ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            ids.append(int(folder.name))
    return ids


def rank_of(process: int) -> str | None:
    words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next((word[5:].decode() for word in words if word.startswith(b"RANK=")), None)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["0", "1"])
def test_after_a_killed_rank_torchrun_resumes_the_run(tmp_path, victim):
    train = ["-m", "npmatch", "train", *SETTINGS, "--quiet", "--out"]
    launcher = torchrun("--standalone", "--nproc-per-node=2", "--max-restarts=2", *train, str(tmp_path / "killed"))
    while not list((tmp_path / "killed" / "checkpoints").glob("step-*0.safetensors")):
        assert launcher.poll() is None, launcher.communicate()[0]
        time.sleep(0.05)
    (process,) = (child for child in children(launcher.pid) if rank_of(child) == victim)
    os.kill(process, signal.SIGKILL)
    printed = launcher.communicate(timeout=300)[0]
    assert launcher.returncode == 0, printed
    undisturbed = torchrun("--standalone", "--nproc-per-node=2", *train, str(tmp_path / "undisturbed"))
    assert undisturbed.communicate(timeout=300)[0] is not None
    clocks = ("seconds", "images_per_second")
    logs = [
        [{k: v for k, v in record.items() if k not in clocks} for record in RunFolder(tmp_path / name).records()]
        for name in ("killed", "undisturbed")
    ]
    assert [r["step"] for r in logs[0] if r["kind"] == "train"] == list(range(5, 201, 5))
    assert logs[0] == logs[1]
    models = [load_tensors(tmp_path / name / "model.safetensors")[0] for name in ("killed", "undisturbed")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("graph", ["true", "false"])
def test_one_rank_on_nccl_trains_as_one_process_does(tmp_path, graph):
    """The collectives are called and, with the graph, captured; more than one GPU is untested."""
    settings = [word for word in SETTINGS if word not in ("--device", "cpu")]
    settings += ["training.precision=float32", f"training.graph={graph}"]
    launcher = torchrun(
        *("--standalone", "--nproc-per-node=1", "-m", "npmatch", "train", *settings, "--out", str(tmp_path / "nccl"))
    )
    printed = launcher.communicate(timeout=500)[0]
    assert launcher.returncode == 0, printed
    alone = [sys.executable, "-m", "npmatch", "train", *settings, "--out", str(tmp_path / "alone")]
    subprocess.run(alone, check=True, capture_output=True)
    losses = [[r["loss"] for r in RunFolder(tmp_path / n).records() if r["kind"] == "train"] for n in ("nccl", "alone")]
    assert len(losses[0]) == len(losses[1])
    assert losses[0][:4] == pytest.approx(losses[1][:4], rel=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")
def test_two_ranks_with_a_network_between_them_train_as_on_one_host(tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "two_namespaces.sh"
    settings = [word for word in SETTINGS if word not in ("--device", "cpu")]
    words = [*settings, "training.iterations=30", "--quiet"]
    done = subprocess.run(
        [str(script), sys.executable, str(tmp_path / "apart"), *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.rsplit(maxsplit=1)[-1]) > 100_000  # bytes that went over the cable
    train = ["-m", "npmatch", "train", *words, "--device", "cpu", "--out", str(tmp_path / "one-host")]
    launcher = torchrun("--standalone", "--nproc-per-node=2", *train)
    printed = launcher.communicate(timeout=300)[0]
    assert launcher.returncode == 0, printed
    models = [load_tensors(tmp_path / name / "model.safetensors")[0] for name in ("apart", "one-host")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
