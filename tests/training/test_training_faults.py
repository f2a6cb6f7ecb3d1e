"""Runs on disks that fill and folders that vanish: nothing is lost, and every failure is reported."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import npmatch
from npmatch import files
from npmatch.compare.gather import find_runs
from npmatch.errors import InterruptedRunError, NPMatchError
from npmatch.runs.folder import RunFolder
from npmatch.training import Checkpoints
from npmatch.training.loop import Trainer
from same_runs import same_run
from tiny import train_tiny


def step_files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def fail_at(monkeypatch, step: int, act) -> None:
    """Calls `act(trainer)` once `step` steps are taken."""
    take_step = Trainer.take_step

    def acting(self, raw):
        take_step(self, raw)
        if self.step == step:
            act(self)

    monkeypatch.setattr(Trainer, "take_step", acting)


def fill_disk(monkeypatch) -> Callable[[Trainer], None]:
    """Returns an `act` after which the temporary file of the checkpoint at step 14 is /dev/full, once."""
    open_new, full = files.open_new, ["step-00000014.safetensors"]

    def opened(path):
        return open("/dev/full", "wb") if full[-1:] == [files.final_name(path.name)] and full.pop() else open_new(path)

    return lambda trainer: monkeypatch.setattr(files, "open_new", opened)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_stops_the_run_and_the_last_checkpoint_is_intact(tiny_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(patch, 8, fill_disk(patch))
        with pytest.raises(NPMatchError, match=r"after step 14 \(No space left.*step-00000007\.safetensors.*--resume"):
            train_tiny(tmp_path / "run")
    assert step_files(tmp_path / "run") == ["step-00000007.safetensors"]
    assert same_run(train_tiny(tmp_path / "run", resume=True).folder, tiny_run.folder)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_with_on_save_error_continue_a_run_goes_on_and_warns(tiny_run, tmp_path, monkeypatch, capfd):
    fail_at(monkeypatch, 8, fill_disk(monkeypatch))
    run = train_tiny(tmp_path / "run", training__on_save_error="continue")
    printed = capfd.readouterr().err
    assert "No space left" in printed
    assert "going on without saving" in printed
    assert step_files(run.folder) == ["step-00000021.safetensors", "step-00000024.safetensors"]
    assert same_run(run.folder, tiny_run.folder)


def test_an_interrupted_run_says_that_its_state_could_not_be_saved(tmp_path, monkeypatch):
    def refuse(self, step, parts):
        raise OSError(errno.ENOSPC, "No space left on device")

    def interrupt(trainer):
        monkeypatch.setattr(Checkpoints, "save", refuse)
        os.kill(os.getpid(), signal.SIGINT)

    fail_at(monkeypatch, 8, interrupt)
    with pytest.raises(InterruptedRunError, match=r"after step 8; its state could NOT be saved.*--resume") as stopped:
        train_tiny(tmp_path / "run", training__on_save_error="continue")
    assert stopped.value.exit_code == 130
    assert step_files(tmp_path / "run") == ["step-00000007.safetensors"]


def test_a_vanished_folder_stops_the_run_and_is_not_created_again(tmp_path, monkeypatch):
    folder = tmp_path / "mount" / "run"
    fail_at(monkeypatch, 8, lambda trainer: os.rename(tmp_path / "mount", tmp_path / "elsewhere"))
    with pytest.raises(NPMatchError, match=r"No such file or directory.*--resume"):
        train_tiny(folder)
    assert not (tmp_path / "mount").exists()
    assert step_files(tmp_path / "elsewhere" / "run") == ["step-00000007.safetensors"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "predictions/test.parquet"])
def test_a_file_that_cannot_be_written_at_the_end_is_one_error_and_resume_writes_it(
    tiny_run, tmp_path, monkeypatch, name
):
    from npmatch.predict import saved as saved_model
    from npmatch.runs import folder as run_folder
    from npmatch.training import checkpoint

    def refuse(path, content):
        if str(path).endswith(name):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        files.write_atomically(path, content)

    with monkeypatch.context() as patch:
        for module in (run_folder, saved_model, checkpoint):
            patch.setattr(module, "write_atomically", refuse)
        with pytest.raises(NPMatchError, match=rf"{name}: Read-only file system.*intact"):
            train_tiny(tmp_path / "run")
    run = train_tiny(tmp_path / "run", resume=True)
    assert same_run(run.folder, tiny_run.folder)
    assert (run.folder / "model.safetensors").read_bytes() == (tiny_run.folder / "model.safetensors").read_bytes()


def test_a_run_killed_before_its_report_is_not_finished_yet(tiny_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("npmatch.runs.fit.write_run_report", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_tiny(tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert run.has_model()
    assert not run.is_finished()
    for read in (npmatch.load, npmatch.evaluate_run, lambda path: find_runs([path])):
        with pytest.raises(NPMatchError, match="finished"):
            read(run.path)
    resumed = train_tiny(tmp_path / "run", resume=True)
    assert (resumed.folder / "report.html").exists()
    assert same_run(resumed.folder, tiny_run.folder)


def test_a_finished_run_that_lost_its_model_is_not_finished(tiny_run, tmp_path):
    shutil.copytree(tiny_run.folder, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    train_tiny(tmp_path / "run", resume=True)
    model = "model.safetensors"
    assert (tmp_path / "run" / model).read_bytes() == (tiny_run.folder / model).read_bytes()
