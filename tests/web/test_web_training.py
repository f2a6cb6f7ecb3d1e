"""The training process of a folder's page: one at a time, found again by another server, stopped and resumed."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from served_page import wait_until

from few_photos import save_photo
from npmatch.errors import NPMatchError
from npmatch.files import locked
from npmatch.predict.saved import ModelSpec
from npmatch.web.forecasting import Forecasts
from npmatch.web.rounds import Rounds
from npmatch.web.training import MINUTES, Job, Training, process_birth


@pytest.fixture
def data(tmp_path):
    save_photo(tmp_path / "photos" / "a.png")
    return tmp_path / "photos"


@pytest.fixture
def fake(monkeypatch):
    """Words for the process in place of `npmatch train`: `wait` until it is stopped, or `fail`."""
    words = ["wait"]
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def command(self, minutes, run=None):
        out = self.rounds.out / (run or self.rounds.next_name())
        return ["fake_training", "--data", str(self.data), "--minutes", str(minutes), "--out", str(out), *words]

    monkeypatch.setattr(Training, "command", command)
    monkeypatch.setattr(
        Training, "resume_command", lambda self, run: ["fake_training", "--out", str(self.rounds.out / run), *words]
    )
    return words


@pytest.fixture
def make(data, fake):
    """Makes what a server has for this folder; whatever it has started is ended with the test."""
    made = []

    def new():
        made.append(Training(data, Rounds(data, data.parent / "photos-runs")))
        return made[-1]

    yield new
    for training in made:
        if training._child is not None:
            training._child.kill()
            training._child.wait()


def begun(training):
    wait_until(lambda: training.describe().get("step") == 5)


def test_the_command_is_that_of_a_terminal(data):
    training = Training(data, Rounds(data, data.parent / "runs"), "cpu")
    out = str(data.parent / "runs" / "round1")
    words = ["npmatch", "train", "--data", str(data), "--minutes", "3", "--out", out, "--device", "cpu"]
    assert training.command(3) == words
    assert training.resume_command("round1") == ["npmatch", "train", "--out", out, "--resume", "--device", "cpu"]


def test_progress_stop_and_going_on(make):
    training = make()
    assert training.describe() == {"state": "idle"}
    training.start(1)
    begun(training)
    progress = training.describe()
    assert (progress["state"], progress["round"], progress["iterations"]) == ("running", "round1", 10)
    assert progress["left"] == pytest.approx(2.0)
    assert progress["trusted"] == 0.5
    training.stop()
    wait_until(lambda: training.describe()["state"] == "stopped")
    assert training.describe()["can_resume"]
    training.resume("round1")
    wait_until(lambda: training.describe()["state"] == "running")
    training.stop()
    wait_until(lambda: training.describe()["state"] == "stopped")
    training.start(1)
    wait_until(lambda: training.describe().get("round") == "round2")


def test_another_server_finds_the_process_and_starts_no_second(make):
    first = make()
    job = first.start(1)
    begun(first)
    second = make()
    assert second.running() == job
    for server in (first, second):
        with pytest.raises(NPMatchError, match="round1 is being trained already"):
            server.start(1)
    second.stop()
    assert first._child.wait(20) == 1
    wait_until(lambda: second.describe()["state"] == "stopped")


def test_the_process_holds_the_lock_for_as_long_as_it_lives(make):
    first, second = make(), make()
    first.start(1)
    begun(first)
    second._job_file.unlink()  # as if the first server had been killed before it could write it
    second.rounds = Rounds(second.data, second.data.parent / "elsewhere")
    with pytest.raises(NPMatchError, match="another process is at work"):
        second.start(1)
    first._child.kill()
    first._child.wait()
    second.start(1)


def test_a_training_in_a_terminal_counts_too(make, data):
    training = make()
    training.start(1)
    begun(training)
    training.stop()
    wait_until(lambda: training.describe()["state"] == "stopped")
    code = (
        "import sys, fcntl; file = open(sys.argv[1], 'a'); fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    lock = data.parent / "photos-runs" / "round1" / ".lock"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"locked\n"
        assert training.describe()["state"] == "elsewhere"
        with pytest.raises(NPMatchError, match="round1 is being trained already"):
            training.start(1)
        other.stdin.close()
    assert training.describe()["state"] == "stopped"


def test_a_failure_is_told_in_one_line(make, fake):
    fake[:] = ["fail"]
    training = make()
    training.start(1)
    wait_until(lambda: training.describe()["state"] == "failed")
    assert training.describe()["message"] == "labels.csv: this is wrong"
    assert not training.describe()["can_resume"]


def test_another_process_of_the_same_number_is_not_taken_for_it(make):
    training = make()
    job = training.start(1)
    begun(training)
    training._child.kill()
    training._child.wait()
    other = Job(os.getpid(), "another time", job.command, job.run, 1, 0.0)
    training._remember(other)
    assert training.running() is None
    with pytest.raises(NPMatchError, match="nothing is being trained"):
        training.stop()  # it would have ended this very process
    training._remember(replace(other, born=process_birth(os.getpid())))
    assert training.running() is not None


def test_a_process_that_has_ended_has_no_birth():
    child = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: process_birth(child.pid) is None)  # a zombie, as nobody has waited for it
    child.wait()
    assert process_birth(child.pid) is None
    assert process_birth(os.getpid()) == process_birth(os.getpid()) != None  # noqa: E711 - compared, not identical


@pytest.mark.parametrize("minutes", [0, -1, 2, 1000, 1.5])
def test_only_the_minutes_on_the_list_are_taken(make, minutes):
    with pytest.raises(NPMatchError, match="choose one of"):
        make().start(minutes)
    assert 1 in MINUTES


def test_rounds_are_the_runs_of_this_folder_in_their_order(data, tmp_path):
    out = tmp_path / "photos-runs"
    for name, root in (("round10", data), ("round2", data), ("other", tmp_path), ("mine", data)):
        (out / name).mkdir(parents=True)
        (out / name / "config.yaml").write_text(f"data:\n  root: {root}\n")
    (out / "broken").mkdir()
    (out / "broken" / "config.yaml").write_text(": : :")
    rounds = Rounds(data, out)
    assert rounds.names() == ["mine", "round2", "round10"]
    assert rounds.next_name() == "round11"
    for name in ("other", "../photos-runs/round2", "", "."):
        with pytest.raises(NPMatchError, match="no such round"):
            rounds.folder(name)
    with locked(out / "round2"):
        assert rounds.locked() == "round2"


def test_a_damaged_job_file_is_nobody(make):
    training = make()
    training.folder.mkdir(parents=True)
    for content in ("", "{}", json.dumps({"pid": 1}), "[1]"):
        training._job_file.write_text(content)
        assert training.running() is None
        assert training.describe() == {"state": "idle"}


@pytest.fixture
def forecasts(data, fake, make, monkeypatch):
    """Forecasts of a folder that has a finished round, by the process that stands for training."""
    out = data.parent / "photos-runs"

    def command(self, run):
        return ["fake_training", "forecast", "--out", str(self.rounds.out / run), *fake]

    monkeypatch.setattr(Forecasts, "command", command)
    monkeypatch.setattr("npmatch.runs.folder.RunFolder.is_finished", lambda self: self.path.name == "done")
    monkeypatch.setattr(ModelSpec, "load", lambda path: SimpleNamespace(num_labeled=3))
    (out / "done").mkdir(parents=True)
    (out / "done" / "config.yaml").write_text(f"data:\n  root: {data}\n")
    made = Forecasts(Rounds(data, out))
    yield made
    if made._child is not None:
        made._child.kill()
        made._child.wait()


def test_a_forecast_and_a_training_are_never_at_work_together(make, forecasts):
    training = make()
    training.start(1)
    begun(training)
    with pytest.raises(NPMatchError, match="round1 is being trained already"):
        forecasts.start("done")
    training.stop()
    wait_until(lambda: training.describe()["state"] == "stopped")
    with pytest.raises(NPMatchError, match="round1: has no model yet"):
        forecasts.start("round1")
    forecasts.start("done")
    with pytest.raises(NPMatchError, match="done is being forecast already"):
        training.start(1)
    other = Forecasts(forecasts.rounds)  # another server finds it
    wait_until(lambda: (forecasts.rounds.out / "done" / "metrics.jsonl").exists())  # it listens to signals by now
    assert other.describe()["state"] == "running"
    assert training.describe()["state"] == "stopped", "the stopped round can still be resumed"
    other.stop()
    wait_until(lambda: forecasts.describe() == {"state": "idle"})
    with pytest.raises(NPMatchError, match="nothing is being forecast"):
        other.stop()


def test_progress_and_failure_of_a_forecast_are_told(forecasts, fake):
    forecasts.start("done")
    assert forecasts.describe()["state"] == "running"
    facts = {"title": "heads", "done": 30, "total": 120, "seconds": 2.0}
    forecasts._progress_file.write_text(json.dumps(facts))
    assert forecasts.describe()["left"] == pytest.approx(6.0)
    for broken in ("", "[]", '{"done": "x"}'):
        forecasts._progress_file.write_text(broken)
        assert forecasts.progress() == {}
    forecasts._child.kill()
    forecasts._child.wait()
    assert forecasts.describe()["message"] == "it ended without a message, perhaps killed"
    fake[:] = ["fail"]
    forecasts.start("done")
    wait_until(lambda: forecasts.describe()["state"] == "failed")
    assert forecasts.describe()["message"] == "labels.csv: this is wrong"


def test_a_damaged_forecast_is_shown_as_none(forecasts):
    file = forecasts.rounds.out / "done" / "forecast.json"
    for content in ("", "[]", '{"expected": 3}', '{"expected": [], "remarks": 1}'):
        file.write_text(content)
        assert (forecasts.found("done")["lines"], forecasts.figure("done")) == ([], {})
