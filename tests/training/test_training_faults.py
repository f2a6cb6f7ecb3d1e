"""Disks that fill, folders that vanish, checkpoints that are damaged: nothing is lost and nothing is swallowed."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import npmatch
from npmatch import files
from npmatch.compare.gather import find_runs
from npmatch.errors import NPMatchError
from npmatch.runs.folder import RunFolder
from npmatch.training import Checkpoints, Recorder, load_tensors, save_tensors
from npmatch.training.loop import Trainer
from same_runs import same_run
from tiny import stop_tiny, train_tiny


def step_files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def flip_a_bit(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "a flipped bit in a tensor": lambda path: flip_a_bit(path, -100),
    "a flipped bit in the header": lambda path: flip_a_bit(path, 40),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "nothing": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "a whole safetensors file of something else": lambda path: save_tensors(path, {"a": torch.zeros(2)}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_used(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (5, 10):
        checkpoints.save(step, {"model": {"w": torch.full((100,), float(step))}})
    DAMAGE[damage](checkpoints.paths()[-1])
    said = []
    step, parts = checkpoints.load_latest(said.append)
    assert (step, parts["model"]["w"][0]) == (5, 5)
    assert "step-00000010" in said[0]
    assert "step-00000005.safetensors used" in said[1]
    # The damaged one takes the place of no good one from now on.
    checkpoints.save(7, parts)
    assert step_files(tmp_path) == [
        "damaged-step-00000010.safetensors", "step-00000005.safetensors", "step-00000007.safetensors"
    ]  # fmt: skip


def test_what_a_kill_left_of_a_checkpoint_goes_with_the_next_one(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(5, {"model": {"w": torch.zeros(3)}})
    (tmp_path / "checkpoints" / "step-00000008.safetensors.tmp").write_bytes(b"half")
    checkpoints.save(10, {"model": {"w": torch.zeros(3)}})
    assert step_files(tmp_path) == ["step-00000005.safetensors", "step-00000010.safetensors"]


def test_where_every_checkpoint_is_damaged_nothing_is_touched_and_it_is_said(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(5, {"model": {"w": torch.zeros(3)}})
    DAMAGE["half of it"](checkpoints.paths()[0])
    with pytest.raises(NPMatchError, match=r"no checkpoint in it can be read"):
        checkpoints.load_latest(lambda text: None)
    assert step_files(tmp_path) == ["step-00000005.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_the_checksum_sees_every_type_and_shape(tmp_path, dtype):
    for tensor in (torch.ones((), dtype=dtype), torch.ones(3, 5, dtype=dtype), torch.ones(0, 4, dtype=dtype)):
        save_tensors(tmp_path / "file", {"t": tensor}, {"step": 3})
        loaded, scalars = load_tensors(tmp_path / "file")
        assert torch.equal(loaded["t"], tensor)
        assert scalars == {"step": 3}
    flip_a_bit(tmp_path / "file", 60)
    with pytest.raises(NPMatchError):
        load_tensors(tmp_path / "file")


def test_a_run_falls_back_to_the_checkpoint_before_and_ends_the_same(tiny_run, tmp_path, capfd):
    folder = tmp_path / "run"
    stop_tiny(folder, 17)
    assert step_files(folder) == ["step-00000007.safetensors", "step-00000014.safetensors"]
    flip_a_bit(folder / "checkpoints" / "step-00000014.safetensors", -8)
    resumed = train_tiny(folder, resume=True)
    assert "checksum" in capfd.readouterr().err
    assert same_run(resumed.folder, tiny_run.folder)


def fail_at(monkeypatch, step: int, act) -> None:
    """Does `act(trainer)` once `step` steps are taken."""
    take_step = Trainer.take_step

    def acting(self, raw):
        take_step(self, raw)
        if self.step == step:
            act(self)

    monkeypatch.setattr(Trainer, "take_step", acting)


def fill_disk(monkeypatch) -> Callable[[Trainer], None]:
    """The next checkpoint's temporary file is the device that is always full."""
    open_new, full = files.open_new, ["step-00000014.safetensors.tmp"]

    def opened(path):
        return open("/dev/full", "wb") if full[-1:] == [path.name] and full.pop() else open_new(path)

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
def test_a_run_told_to_goes_on_and_says_what_it_could_not_save(tiny_run, tmp_path, monkeypatch, capfd):
    fail_at(monkeypatch, 8, fill_disk(monkeypatch))
    run = train_tiny(tmp_path / "run", training__on_save_error="continue")
    said = capfd.readouterr().err
    assert "No space left" in said
    assert "going on without saving" in said
    assert step_files(run.folder) == ["step-00000021.safetensors", "step-00000024.safetensors"]
    assert same_run(run.folder, tiny_run.folder)


def test_a_vanished_folder_stops_the_run_and_is_not_made_anew(tmp_path, monkeypatch):
    folder = tmp_path / "mount" / "run"
    fail_at(monkeypatch, 8, lambda trainer: os.rename(tmp_path / "mount", tmp_path / "elsewhere"))
    with pytest.raises(NPMatchError, match=r"No such file or directory.*--resume"):
        train_tiny(folder)
    assert not (tmp_path / "mount").exists()
    assert step_files(tmp_path / "elsewhere" / "run") == ["step-00000007.safetensors"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "predictions/test.parquet"])
def test_what_a_finished_run_cannot_write_is_one_line_and_resume_writes_it(tiny_run, tmp_path, monkeypatch, name):
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
    for ask in (npmatch.load, npmatch.evaluate_run, lambda path: find_runs([path])):
        with pytest.raises(NPMatchError, match="finished"):
            ask(run.path)
    resumed = train_tiny(tmp_path / "run", resume=True)
    assert (resumed.folder / "report.html").exists()
    assert same_run(resumed.folder, tiny_run.folder)


class FullAfter:
    """A file on a disk that takes some bytes more and then refuses."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def write(self, content: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(self.room, len(content))
        self.room -= taken
        return self.file.write(content[:taken])

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_line_the_disk_refused_is_written_with_the_next_one(tmp_path):
    recorder = Recorder(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    recorder.write("train", 5, {"loss": 1.0})
    recorder.file = FullAfter(recorder.file, room=11)
    with pytest.raises(OSError, match="No space"):
        recorder.write("train", 10, {"loss": 0.5})
    assert [r["step"] for r in RunFolder(tmp_path).records()] == [5]
    recorder.file.room = 10_000
    recorder.write("train", 15, {"loss": 0.25})
    recorder.close()
    assert [(r["step"], r["loss"]) for r in RunFolder(tmp_path).records()] == [(5, 1.0), (10, 0.5), (15, 0.25)]


def test_an_altered_log_is_named_and_a_torn_end_is_not_an_alteration(tmp_path):
    lines = [json.dumps({"kind": "train", "step": step}) for step in (5, 10)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, "\0\0\0\0", ""]))
    assert [r["step"] for r in RunFolder(tmp_path).records()] == [5, 10]
    (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0], "oops", lines[1], ""]))
    with pytest.raises(NPMatchError, match=r"metrics\.jsonl, line 2"):
        RunFolder(tmp_path).records()


@pytest.mark.parametrize("line", ['{"kind":"train","step":"x"}', '{"kind":["train"],"step":1}', '{"step":1}',
                                  '{"kind":"train","step":1,"seconds":"x"}', '{"kind":"train"}', "7"])  # fmt: skip
def test_a_line_of_other_types_is_no_record(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{line}\n{{"kind":"train","step":5,"seconds":1}}\n')
    with pytest.raises(NPMatchError, match=r"metrics\.jsonl, line 1: not a record"):
        RunFolder(tmp_path).records()


def test_a_finished_run_that_lost_its_model_is_not_finished(tiny_run, tmp_path):
    shutil.copytree(tiny_run.folder, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    train_tiny(tmp_path / "run", resume=True)
    model = "model.safetensors"
    assert (tmp_path / "run" / model).read_bytes() == (tiny_run.folder / model).read_bytes()
