"""--minutes is the time of the whole command: training gets what the check, the evaluation and the report leave."""

import json

import pytest
import torch

import npmatch
from few_photos import save_photos
from npmatch.cli import main
from npmatch.config.resolve import resolve_config
from npmatch.config.tree import read_config_file
from npmatch.data.check import list_data
from npmatch.errors import NPMatchError
from npmatch.runs import minutes
from npmatch.runs.fit import train_run
from npmatch.runs.folder import RunFolder
from npmatch.runs.request import Request
from npmatch.training import Display, pace
from tiny import TINY

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHORT = {key: value for key, value in TINY.items() if key not in ("training.iterations", "algorithm.max_entropy")} | {
    "data.image_size": 8,
    "backbone.name": "cnn",
    "augment.padding": 1,
}


@pytest.fixture
def photos(tmp_path):
    return save_photos(tmp_path / "photos", size=(60, 40), unlabeled=20)


def pretend(monkeypatch, step: float, training: float) -> None:
    """A step takes so many seconds, and so many are left for training."""
    real = minutes.seconds_per_step
    monkeypatch.setattr(pace, "MAX_TIMED_STEPS", 3)
    monkeypatch.setattr(minutes, "seconds_per_step", lambda *args: real(*args) and step)
    monkeypatch.setattr(minutes, "seconds_per_image", lambda evaluator: 0.0)
    monkeypatch.setattr(minutes, "training_seconds", lambda minutes, others: training)


def test_the_steps_are_filled_in_and_remembered(photos, tmp_path, capsys, monkeypatch):
    pretend(monkeypatch, step=1, training=12)
    run = tmp_path / "run"
    words = [f"{key}={value}" for key, value in SHORT.items()]
    command = ["train", "--data", str(photos), "--out", str(run), "--device", "cpu", *words, "--minutes", "1.2"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 2
    stored = read_config_file(run / "config.yaml")
    assert (stored["training.iterations"], stored["training.eval_every"]) == (12, 10)
    assert stored["training.ema"] ** 12 < 0.01  # the random start's share of the averaged weights
    assert [r["step"] for r in npmatch.fit(out=run, resume=True, quiet=True).records() if r["kind"] == "final"] == [12]
    assert main([*command, "--resume"]) == 0
    assert "finished already" in capsys.readouterr().err


def test_with_a_recipe_an_interval_longer_than_the_run_is_shortened(tmp_path, monkeypatch):
    pretend(monkeypatch, step=60, training=1200)
    words = {key: value for key, value in TINY.items() if not key.endswith(("iterations", "_every"))}
    run = npmatch.fit("digits-40", out=tmp_path / "run", minutes=1, quiet=True, device="cpu", overrides=words)
    t = RunFolder(run.folder).read_config().training
    assert (t.iterations, t.eval_every, t.checkpoint_every) == (20, 2, 2)


def test_measuring_changes_nothing_but_the_number_of_steps(photos, tmp_path, monkeypatch):
    pretend(monkeypatch, step=1, training=5)
    measured = npmatch.fit(data=photos, out=tmp_path / "a", minutes=1, quiet=True, device="cpu", overrides=SHORT)
    stated = {**SHORT, "training.iterations": 5, "training.eval_every": 1, "training.checkpoint_every": 1}
    plain = npmatch.fit(data=photos, out=tmp_path / "b", quiet=True, device="cpu", overrides=stated)
    files = [run.folder / "model.safetensors" for run in (measured, plain)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_minutes_and_iterations_are_not_both(photos, tmp_path):
    for time, words, message in [
        (1, {"training.iterations": 5}, "not both"),
        (0, {}, "above 0"),
        (-1, {}, "above 0"),
    ]:
        with pytest.raises(NPMatchError, match=message):
            npmatch.fit(data=photos, out=tmp_path / "run", minutes=time, overrides=words)


def test_the_whole_command_takes_the_minutes(photos, tmp_path):
    display = Display("", 0, quiet=True)
    request = Request(None, photos, None, tmp_path / "run", None, "cpu", False, None, None, SHORT, minutes=0.1)
    train_run(request, CPU, False, display)
    assert display.clock.seconds.keys() >= {"check", "build", "timing of steps", "training", "calibration", "report"}
    assert sum(display.clock.seconds.values()) == pytest.approx(display.clock.elapsed(), abs=0.5)
    assert 3 < display.clock.elapsed() < 18  # 6 s were asked for; other work may slow this machine down


def test_training_gets_at_least_half_of_the_minutes():
    assert minutes.training_seconds(2, 30) == 90
    assert minutes.training_seconds(2, 500) == 60


@pytest.mark.parametrize(
    ("time", "check", "line"),
    [
        (2, 6.2, "about 2 min in all: 10 s to check and decode 30 images and to get ready, 1 min 45 s of training"),
        (2, 300, "about 6 min 05 s in all: 5 min 05 s to check and decode 30 images and to get ready, 1 min of"),
        (0.5, 1, "about 30 s in all: 5 s to check and decode 30 images and to get ready, 22 s of training, 3 s to"),
    ],
)
def test_the_first_line_says_how_long_all_will_take(photos, monkeypatch, capsys, time, check, line):
    monkeypatch.setattr(minutes, "seconds_to_check", lambda listing, config: check)
    monkeypatch.setattr(minutes, "BUILDING", {False: 3.0})
    monkeypatch.setattr(minutes, "timed_seconds", lambda minutes: 1.0)
    config = resolve_config(data=photos, device="cpu", overrides=SHORT)
    minutes.announce(config, list_data(photos), time, CPU, Display("", 0))
    assert line in capsys.readouterr().err


def test_the_time_of_the_check_grows_with_the_files(tmp_path):
    seconds = []
    for count in (20, 200):
        photos = save_photos(tmp_path / str(count), unlabeled=count)
        config = resolve_config(data=photos, device="cpu", overrides=SHORT)
        seconds.append(minutes.seconds_to_check(list_data(photos), config))
    assert 0 < seconds[0] < seconds[1] < 10


def test_a_run_of_few_minutes_is_not_compiled():
    def compiled(time, device=CUDA, **words):
        settings = {key.replace("__", "."): value for key, value in words.items()}
        return minutes.decide_compilation(
            resolve_config("digits-40", overrides=settings), time, device
        ).training.compile

    assert compiled(2) is False
    assert compiled(2, training__iterations=10**6) is False  # --minutes will replace it
    assert compiled(60) is True
    assert compiled(2, training__compile=True) is True
    assert compiled(60, training__compile=False) is False
    assert compiled(60, CPU) is None
