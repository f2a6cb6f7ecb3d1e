"""compare, sweep and predict on a real Ray cluster of two machines, of which one is killed in the middle."""

import json
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from ray_machines import Machines, two_machines

from few_photos import save_photo
from npmatch.cli import main
from npmatch.compare import engine
from npmatch.compare.variants import parse_variant
from npmatch.runs.folder import RunFolder
from npmatch.training import Checkpoints

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'npmatch[cluster]'")

SECONDS = 240  # that a command may take on a busy machine
SMALL = {
    "training.batch": 8,
    "training.unlabeled_ratio": 2,
    "training.log_every": 5,
    "training.checkpoint_every": 10,
    "training.eval_every": 1000,
    "backbone.width": 4,
}
WORDS = ["digits-40", *(f"{key}={value}" for key, value in SMALL.items())]
ALGORITHMS = ("supervised", "fixmatch")


@pytest.fixture(scope="module")
def cluster():
    with two_machines() as machines:
        yield machines


@pytest.fixture
def machines(cluster) -> Machines:
    """The cluster with both machines alive."""
    cluster.replace_killed()
    return cluster


@pytest.fixture
def start(machines):
    """A function that starts a command as a user types it, with --cluster; none outlives its test."""
    started = []

    def start(*words) -> subprocess.Popen:
        command = [sys.executable, "-m", "npmatch", *map(str, words), "--cluster", machines.name, "--json"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=machines.environment, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(condition, process: subprocess.Popen, seconds=SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def train_here(jobs, _engine, _display, ended):
    """Trains the jobs in this process, which has imported everything."""
    for job in jobs:
        assert main(list(job.command[3:])) == 0
        ended(job, None)
    return {}


def table(printed: str) -> list[dict]:
    rows = json.loads(printed.splitlines()[-1])["rows"]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_comparison_that_loses_a_machine_has_the_same_table(machines, start, tmp_path, capsys, monkeypatch):
    words = ["compare", *WORDS, "--algorithms", ",".join(ALGORITHMS), "--seeds", "1", "--budget-iterations", "150"]
    words += ["--device", "cpu", "--out"]
    there, here = tmp_path / "there", tmp_path / "here"
    folders = [there / parse_variant(name).slug / "seed-0" for name in ALGORITHMS]

    def is_in_the_middle() -> bool:
        """Whether the second machine trains a run that has a checkpoint."""
        begun = [folder for folder in folders if RunFolder(folder).checkpoints.is_dir()]
        return any(f"{folder} " in machines.commands_on_second() for folder in begun)

    process = start(*words, there)
    wait_for(is_in_the_middle, process)
    machines.kill_second()
    monkeypatch.setattr(engine, "run_jobs", train_here)
    assert main([*words, str(here), "--json"]) == 0
    expected = capsys.readouterr().out
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert err.count("its worker was lost: ") == 1
    assert "seed 0: started again at step " in err
    assert table(out) == table(expected)
    for folder in folders:
        same = here / folder.relative_to(there)
        assert RunFolder(folder).model_weights.read_bytes() == RunFolder(same).model_weights.read_bytes()


def test_predictions_that_lose_a_machine_are_those_of_one_process(machines, start, tiny_run, tmp_path, capsys):
    for i in range(2500):
        save_photo(tmp_path / "photos" / f"{i % 7}" / f"{i}.png", seed=i, size=(8, 8))
    (tmp_path / "photos" / "3" / "broken.png").write_bytes(b"no picture")
    words = ["predict", str(tiny_run.folder), str(tmp_path / "photos"), "--top-k", "2", "--device", "cpu", "-o"]
    assert main([*words, str(tmp_path / "one.csv"), "--json"]) == 1
    one = capsys.readouterr().out
    process = start(*words, tmp_path / "two.csv")
    wait_for(lambda: "ray::call_on_worker" in machines.commands_on_second(), process)
    machines.kill_second()
    two, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, err
    assert two.replace("two.csv", "one.csv") == one
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("head", "write ray:HOST:PORT, as `ray start --head` prints it, or ray:auto"),
        ("127.0.0.1:1", "no Ray cluster answers there ([Errno 111] Connection refused); start one on 127.0.0.1 with: "),
    ],
)
def test_a_cluster_that_is_not_up_is_one_line_and_no_folder(tmp_path, capsys, address, message):
    words = ["compare", "digits-40", "--algorithms", "supervised", "--out", str(tmp_path / "out")]
    assert main([*words, "--cluster", f"ray:{address}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"npmatch: --cluster ray:{address}: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_cluster_without_room_is_waited_for_and_runs_that_wait_are_stopped_by_ctrl_c(start, tmp_path):
    words = ["compare", *WORDS, "--algorithms", "supervised", "--seeds", "2", "--out", tmp_path / "out"]
    process = start(*words, "--cores", "64")
    assert "no machine has 64 cores yet; waiting for one" in process.stderr.readline()
    wait_for((tmp_path / "out" / "supervised").is_dir, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "started" not in err


@pytest.mark.slow
def test_a_budget_in_minutes_is_measured_by_a_worker_and_ctrl_c_leaves_runs_to_resume(start, tmp_path):
    run = RunFolder(tmp_path / "out" / parse_variant("supervised[training.batch=8]").slug / "seed-0")
    words = ["sweep", *(word for word in WORDS if "batch" not in word), "training.batch=8,16", "--algorithm"]
    words += ["supervised", "--seeds", "1", "--budget-minutes", "0.1", "--out", tmp_path / "out"]
    process = start(*words)
    wait_for(lambda: run.checkpoints.is_dir(), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "run the same command again" in err
    assert "--resume" in run.path.with_name("seed-0.log").read_text()  # stopped by a signal that it handles
    assert not run.is_locked()
    stopped_at = Checkpoints(run.checkpoints).load_latest(pytest.fail)[0]
    steps = json.loads((tmp_path / "out" / "compare.json").read_text())["calibrated"]
    assert stopped_at < steps["supervised[training.batch=8]"]
    process = start(*words)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert f"started again at step {stopped_at // 5 * 5}" in err
    assert [row["iterations"] for row in table(out)] == list(steps.values())


@pytest.mark.slow
def test_ctrl_c_leaves_no_table_and_no_part_behind(machines, start, tiny_run, tmp_path):
    for i in range(4000):
        save_photo(tmp_path / "photos" / f"{i}.png", seed=i, size=(8, 8))
    process = start("predict", tiny_run.folder, tmp_path / "photos", "-o", tmp_path / "out.csv")
    wait_for(lambda: "ray::call_on_worker" in machines.commands_on_second(), process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert not list(tmp_path.glob("*out.csv*"))
