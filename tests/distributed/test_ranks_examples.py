"""The examples for clusters are what their readers take them for: a script that parses, manifests that name a run."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from npmatch.cli import main
from npmatch.config.recipes import find_recipe

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["examples/slurm.sbatch", "scripts/two_namespaces.sh"])
def test_scripts_parse(script):
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_the_kubernetes_job_is_whole():
    service, job = yaml.safe_load_all((ROOT / "examples" / "kubernetes.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    spec = job["spec"]
    command = spec["template"]["spec"]["containers"][0]["command"]
    assert f"--nnodes={spec['completions']}" in command
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    mounted = {mount["name"] for mount in spec["template"]["spec"]["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    find_recipe(command[command.index("train") + 1])


def test_the_commands_of_both_are_ones_that_train_takes(capsys):
    """Data that is not there is all that is wrong with them."""
    for words in (
        ["--data", "/no/imagenet", "--out", "/no/run", "--resume"],
        ["--data=/no/imagenet", "--out=/no/run", "--resume"],
    ):
        assert main(["train", "imagenet-100k", "--device", "cpu", *words]) == 2
        assert "/no/imagenet" in capsys.readouterr().err


def test_torchrun_knows_the_options_of_both():
    from torch.distributed.run import parse_args

    command = yaml.safe_load_all((ROOT / "examples" / "kubernetes.yaml").read_text())
    words = list(command)[1]["spec"]["template"]["spec"]["containers"][0]["command"][1:]
    parsed = parse_args(words)
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.max_restarts) == ("4", "8", 3)
    script = (ROOT / "examples" / "slurm.sbatch").read_text()
    assert all(f"--{name}=" in script for name in ("nnodes", "nproc-per-node", "rdzv-id", "rdzv-endpoint"))


@pytest.mark.parametrize("signalled", [True, False])
def test_a_slurm_job_whose_time_is_up_saves_itself_and_queues_again(tmp_path, signalled):
    """With stand-ins for SLURM's two commands: a step that ends when it is told to, and one that ends by itself."""
    step = (
        "trap 'echo saved >> log; exit 1' TERM\necho started >> log\nwhile :; do sleep 0.05; done" if signalled else ""
    )
    commands = {
        "srun": f'echo "$@" > words\n{step}',
        "scontrol": 'if [ "$1" = show ]; then echo one; else echo "$@" >> log; fi',
    }
    for name, script in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment |= {"SLURM_JOB_NODELIST": "one", "SLURM_NNODES": "1", "SLURM_JOB_ID": "7"}
    command = ["bash", str(ROOT / "examples" / "slurm.sbatch"), "DATA", "OUT"]
    job = subprocess.Popen(command, cwd=tmp_path, env=environment)
    log = tmp_path / "log"
    if signalled:
        while not log.exists():
            time.sleep(0.02)
        job.send_signal(signal.SIGTERM)
    code = job.wait(timeout=60)
    assert "--rdzv-endpoint=one:29500" in (tmp_path / "words").read_text()
    if signalled:
        assert log.read_text().splitlines() == ["started", "saved", "requeue 7"]
    else:
        assert code == 0
        assert not log.exists()
