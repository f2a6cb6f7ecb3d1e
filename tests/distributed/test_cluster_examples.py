"""The examples for clusters: scripts that parse, manifests that fit together, commands that are accepted."""

import os
import signal
import subprocess
import time
from argparse import Namespace
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import parse_args

from npmatch.cli import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["examples/slurm.sbatch", "scripts/two_namespaces.sh"])
def test_scripts_parse(script):
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def check_command(words: list[str], data: str, capsys) -> Namespace:
    """The options of a torchrun command; its npmatch command must be valid but for the data, which is not there."""
    options = parse_args(words)
    assert main([*options.training_script_args, "--device", "cpu"]) == 2
    assert data in capsys.readouterr().err
    return options


def test_the_kubernetes_manifests_fit_together(capsys):
    service, job = yaml.safe_load_all((ROOT / "examples" / "kubernetes.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = check_command(container["command"][1:], "/data/imagenet", capsys)
    assert int(options.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert int(options.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("signalled", [True, False])
def test_a_slurm_job_whose_time_is_up_stops_its_run_and_requeues_itself(tmp_path, signalled, capsys):
    """With stand-ins for SLURM's two commands: a job step that SIGTERM ends, and one that ends by itself."""
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
    words = (tmp_path / "words").read_text().partition("torchrun ")[2].split()
    assert check_command(words, "DATA", capsys).rdzv_endpoint == "one:29500"
    if signalled:
        assert log.read_text().splitlines() == ["started", "saved", "requeue 7"]
    else:
        assert code == 0
        assert not log.exists()
