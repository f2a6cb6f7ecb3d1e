"""Slurm by submitit, whose local executor starts batch jobs as processes of this machine; sinfo is made up."""

import csv
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from few_photos import save_photo
from npmatch.cli import main
from npmatch.distributed.cluster import open_cluster
from npmatch.distributed.jobs import LostWorkerError
from npmatch.errors import NPMatchError

pytestmark = pytest.mark.skipif(find_spec("submitit") is None, reason="pip install 'npmatch[slurm]'")

SINFO = """#!/bin/sh
case "$*" in
  *--partition=gpu*) printf '1-12:30:00 gpu:a100:4\\n1-12:30:00 (null)\\n';;
  *--partition=short*) printf '30:00 (null)\\n';;
  *--partition=cpu*) printf 'infinite (null)\\n';;
esac
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """A folder of programs that stand for Slurm's; batch jobs are processes of this machine."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"sinfo": SINFO, "sbatch": "#!/bin/sh\nexit 1\n", "srun": "#!/bin/sh\nexit 1\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr("npmatch.distributed.on_slurm.EXECUTOR", "local")
    return programs


def test_without_slurm_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["compare", "digits-40", "--algorithms", "supervised", "--cluster", "slurm:gpu", "--out"]
    assert main([*words, str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        "npmatch: --cluster slurm:gpu: this machine has no sbatch; start the command where Slurm is installed\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("partition", "device", "gpus", "minutes"),
    [
        ("gpu", None, 1, 2190),
        ("gpu", "cpu", 0, 2190),
        ("short", None, 0, 30),
        ("short", "cuda", 1, 30),
        ("cpu", None, 0, 43200),
    ],
)
def test_a_batch_job_asks_for_what_the_partition_has(slurm, tmp_path, monkeypatch, partition, device, gpus, minutes):
    monkeypatch.setattr("npmatch.distributed.on_slurm.EXECUTOR", "slurm")
    cluster = open_cluster(f"slurm:{partition}", tmp_path / "jobs", device=device)
    assert (cluster.gpus, cluster.device) == (gpus, "cuda" if gpus else "cpu")
    asked = cluster.executor._executor._make_submission_file_text("command", "id")
    cores = 8 if gpus else 1
    for line in (f"--partition={partition}", f"--time={minutes}", f"--cpus-per-task={cores}"):
        assert f"#SBATCH {line}\n" in asked
    assert f"--cpus-per-task={cores} command" in asked  # srun's
    assert ("#SBATCH --gpus-per-node=1\n" in asked) == bool(gpus)
    with pytest.raises(NPMatchError, match=rf"--cluster slurm:{partition}: sbatch refused the job"):
        cluster.submit(os.getcwd)


def test_a_partition_that_is_none_is_named(slurm, tmp_path):
    with pytest.raises(NPMatchError, match="--cluster slurm:typo: there is no partition 'typo'; see sinfo"):
        open_cluster("slurm:typo", tmp_path)


@pytest.mark.slow
def test_batch_jobs_that_end_badly_are_told_apart(slurm, tmp_path):
    with open_cluster("slurm:cpu", tmp_path / "jobs") as cluster:
        right, bug, lost = (cluster.submit(*call) for call in ((os.getcwd,), (int, "x"), (signal.raise_signal, 9)))
        assert right.result() == os.getcwd()
        with pytest.raises(NPMatchError, match=r"batch job \d+ failed: ValueError: invalid literal"):
            bug.result()
        with pytest.raises(LostWorkerError, match=r"batch job \d+ ended"):
            lost.result()


@pytest.mark.slow
def test_runs_and_predictions_by_batch_jobs(slurm, tmp_path, tiny_run, capsys):
    out = tmp_path / "out"
    words = [
        "compare",
        "digits-40",
        "training.batch=8",
        "backbone.width=4",
        "--algorithms",
        "supervised",
        "--seeds",
        "2",
    ]
    words += ["--budget-iterations", "12", "--jobs", "1", "--out", str(out), "--cluster", "slurm:cpu"]
    assert main(words) == 0
    with open(out / "table.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["seeds"], row["failed"]) == ("2", "0")
    assert not (out / ".slurm").exists()  # batch jobs that ended well leave nothing
    for i in range(20):
        save_photo(tmp_path / "photos" / f"{i}.png", seed=i)
    capsys.readouterr()
    words = ["predict", str(tiny_run.folder), str(tmp_path / "photos"), "--device", "cpu", "-o"]
    assert main([*words, str(tmp_path / "one.csv")]) == 0
    assert main([*words, str(tmp_path / "two.csv"), "--cluster", "slurm:cpu"]) == 0
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert not list(tmp_path.glob(".*slurm"))


@pytest.mark.slow
def test_ctrl_c_stops_batch_jobs_at_a_checkpoint(slurm, tmp_path):
    code = (
        "import npmatch.distributed.on_slurm as s, sys, npmatch.cli; s.EXECUTOR = 'local'; sys.exit(npmatch.cli.main())"
    )
    run = tmp_path / "out" / "supervised" / "seed-0"
    words = ["compare", "digits-40", "training.batch=8", "backbone.width=4", "training.checkpoint_every=10", "--seeds"]
    words += ["1", "--algorithms", "supervised", "--out", str(tmp_path / "out"), "--cluster", "slurm:cpu"]
    process = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
    while not (run / "checkpoints").is_dir():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "run the same command again" in err
    assert "--resume" in run.with_name("seed-0.log").read_text()
