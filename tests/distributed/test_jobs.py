"""What follows when workers die, on clusters made up in this process, and what a worker does."""

import os
import signal
import subprocess
import sys
import time

import pytest

from npmatch.compare.jobs import Job, JobDisplay, run_jobs
from npmatch.distributed import cluster as clusters
from npmatch.distributed.cluster import Cluster, map_in_order, open_cluster
from npmatch.distributed.jobs import TRIES, LostWorkerError
from npmatch.distributed.workers import call_on_worker, run_command
from npmatch.errors import NPMatchError
from npmatch.files import locked
from npmatch.runs.folder import RunFolder


class MadeUp(Cluster):
    """Carries out each call when its result is asked for; those named in `dying` lose their worker that often."""

    def __init__(self, dying=None, parallel=None) -> None:
        super().__init__("made:up", parallel, gpus=0, cores=1)
        self.dying, self.sent, self.open, self.most = dict(dying or {}), [], 0, 0

    def room(self):
        return 3

    def send(self, function, *arguments):
        self.open += 1
        self.most = max(self.most, self.open)
        self.sent.append(arguments[-1])
        return MadeUpCall(self, function, arguments)


class MadeUpCall:
    def __init__(self, owner, function, arguments):
        self.owner, self.function, self.arguments, self.cancelled = owner, function, arguments, False

    def done(self):
        return True

    def result(self):
        self.owner.open -= 1
        what = self.arguments[-1][0]
        if self.owner.dying.get(what, 0):
            self.owner.dying[what] -= 1
            raise LostWorkerError("power failure")
        return self.function(*self.arguments)

    def cancel(self, force=False):
        self.owner.open -= 1


def double(n):
    if n == 13:
        raise NPMatchError("13: an unlucky number")
    return 2 * n


@pytest.mark.parametrize("parallel", [None, 1, 4])
def test_parts_come_in_order_each_once_and_few_are_under_way(parallel):
    cluster, taken = MadeUp({5: 1, 9: TRIES - 1}, parallel), []

    def parts():
        for n in range(12):
            taken.append(n)
            yield n

    for n, result in enumerate(map_in_order(cluster, double, parts())):
        assert result == 2 * n
        assert len(taken) <= n + (parallel or 6)
    assert n == 11
    assert cluster.most <= (parallel or 6)
    assert sorted(arguments[0] for arguments in cluster.sent) == sorted([*range(12), 5, *[9] * (TRIES - 1)])


def test_a_part_that_loses_every_worker_or_fails_is_one_line_and_nothing_stays_under_way():
    cluster = MadeUp({1: TRIES})
    with pytest.raises(NPMatchError, match=rf"made:up: a part lost its worker {TRIES} times: power failure"):
        list(map_in_order(cluster, double, range(9)))
    cluster = MadeUp()
    with pytest.raises(NPMatchError, match="an unlucky number"):
        list(map_in_order(cluster, double, range(11, 30)))
    results = map_in_order(cluster := MadeUp(), double, range(9))
    assert next(results) == 0
    results.close()
    assert cluster.open == 0


# ---- what a worker does


def test_a_worker_of_another_version_or_without_the_folder_is_named(tmp_path):
    problem, _ = call_on_worker("0.0.1", str(tmp_path), double, (1,))
    assert "this machine has 0.0.1; install the same version on both" in problem
    problem, _ = call_on_worker(clusters.__version__, str(tmp_path / "absent"), double, (1,))
    assert problem.startswith(f"{tmp_path / 'absent'}: No such file or directory on ")
    here = os.getcwd()
    try:
        assert call_on_worker(clusters.__version__, str(tmp_path), os.getcwd, ()) == (None, str(tmp_path))
    finally:
        os.chdir(here)


def python(code: str) -> tuple[str, ...]:
    return ("python of the machine that gave the order", "-c", code)


def test_a_command_gets_its_cores_and_its_exit_code_comes_back(tmp_path):
    code = "import os, sys; sys.stderr.write(os.environ['OMP_NUM_THREADS']); sys.exit(7)"
    assert run_command(python(code), tmp_path / "log", tmp_path / "run", 3) == 7
    assert (tmp_path / "log").read_text() == "3"


def test_storage_that_is_not_shared_or_has_no_locks_is_refused(tmp_path):
    with pytest.raises(NPMatchError, match=r"out/a: not on .*; choose an --out on storage that all machines"):
        run_command(python(""), tmp_path / "out" / "a" / "log", tmp_path / "run", 1)
    (tmp_path / "out" / "a").mkdir(parents=True)
    with locked(tmp_path / "out", inherited=True):
        assert run_command(python(""), tmp_path / "out" / "a" / "log", tmp_path / "run", 1, tmp_path / "out") == 0
    # A lock that was released looks like one of another machine whose file system keeps it to itself.
    with pytest.raises(NPMatchError, match=r"out: .* does not see this command's lock"):
        run_command(python(""), tmp_path / "out" / "a" / "log", tmp_path / "run", 1, tmp_path / "out")


RUN_COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the tests run in the background
from pathlib import Path
from npmatch.distributed.workers import run_command
folder = Path(sys.argv[1])
sys.exit(run_command(("", "-c", sys.argv[2]), folder / "log", folder / "run", 1))
"""
# Says that it has begun, and saves something when it is asked to stop.
CHILD = """
import pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
def stop(signum, frame):
    time.sleep(0.3)
    (folder / "saved").write_text("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
(folder / "begun").touch()
time.sleep(60)
"""


def wait_until(condition, seconds=30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_is_asked_to_save_however_its_worker_ends(tmp_path, signum):
    words = [sys.executable, "-c", RUN_COMMAND, str(tmp_path), CHILD.format(folder=str(tmp_path))]
    worker = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    wait_until((tmp_path / "begun").exists)
    worker.send_signal(signum)
    worker.wait(30)
    if signum != signal.SIGKILL:  # a worker that lives on waits for its command
        assert (tmp_path / "saved").exists()
    wait_until((tmp_path / "saved").exists)


def test_a_command_waits_for_a_process_that_was_thought_dead(tmp_path):
    code = CHILD.format(folder=str(tmp_path)).replace("time.sleep(60)", "")
    worker = [sys.executable, "-c", RUN_COMMAND, str(tmp_path), code]
    with locked(tmp_path / "run"):
        waiting = subprocess.Popen(worker)
        wait_until(lambda: (tmp_path / "log").exists() and "waiting until another" in (tmp_path / "log").read_text())
        time.sleep(0.5)
        assert not (tmp_path / "begun").exists()
    assert waiting.wait(30) == 0
    assert (tmp_path / "begun").exists()


# ---- runs whose workers die


class Dying(Cluster):
    """An engine whose worker dies a few times; each time the run is `progress` steps further."""

    def __init__(self, deaths: int, progress: int) -> None:
        super().__init__("made:up", None, gpus=0, cores=1)
        self.deaths, self.progress, self.starts = deaths, progress, 0

    room = send = None  # never called
    poll = 0.001

    def start(self, command):
        self.starts += 1
        command.folder.mkdir(parents=True, exist_ok=True)
        command.log.touch()
        steps = range(0, 1 + self.starts * self.progress)
        RunFolder(command.folder).log.write_text("".join(f'{{"step": {step}}}\n' for step in steps))
        return DyingProcess(self)


class DyingProcess:
    def __init__(self, engine):
        self.engine, self.dies = engine, engine.starts <= engine.deaths

    def has_started(self):
        return True

    def poll(self):
        if self.dies:
            raise LostWorkerError("power failure")
        return 0


@pytest.mark.parametrize(
    ("deaths", "progress", "starts", "fails"),
    [(1, 0, 2, False), (TRIES, 0, TRIES, True), (3 * TRIES, 10, 3 * TRIES + 1, False)],
)
def test_a_run_that_lost_its_worker_is_started_again_as_long_as_it_gets_further(
    tmp_path, capsys, monkeypatch, deaths, progress, starts, fails
):
    monkeypatch.setattr(Dying, "__abstractmethods__", frozenset())
    engine, job, ended = Dying(deaths, progress), Job("m", 0, (), tmp_path / "m" / "seed-0", 100), []
    problems = run_jobs([job], engine, JobDisplay(1, 0), lambda job, problem: ended.append(problem))
    assert engine.starts == starts
    assert list(problems.values()) == ended[:1] if fails else not problems
    assert ended == (["its worker was lost: power failure"] if fails else [None])
    assert capsys.readouterr().err.count("it will be resumed at its last checkpoint") == starts - 1


# ---- what a user types


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dask:x", "--cluster dask:x: write ray:HOST:PORT, ray:auto or slurm:PARTITION"),
        ("ray", "write ray:HOST:PORT"),
        ("slurm:", "slurm:PARTITION"),
    ],
)
def test_a_cluster_that_is_none_is_refused(tmp_path, name, message):
    with pytest.raises(NPMatchError, match=message):
        open_cluster(name, tmp_path)


@pytest.mark.parametrize(("name", "extra"), [("ray:auto", "cluster"), ("slurm:gpu", "slurm")])
def test_an_engine_that_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, name, extra):
    monkeypatch.setattr(clusters, "find_spec", lambda name: None)
    with pytest.raises(NPMatchError, match=rf"--cluster {name}: needs .*: pip install 'npmatch\[{extra}\]'"):
        open_cluster(name, tmp_path)


def test_engines_are_not_imported_unless_asked_for():
    code = "import sys, npmatch.cli, npmatch.compare, npmatch.predict.files, npmatch.distributed.cluster; print(sorted("
    code += "{'ray', 'submitit'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"[]\n"
