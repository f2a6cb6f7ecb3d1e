"""Checkpoints: whole or absent, the last two, no pickle."""

import pytest
import torch

from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.runs.folder import RunFolder
from npmatch.training import Checkpoints, Recorder, load_tensors


def test_the_last_two_are_kept_and_the_newest_is_read(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.load_latest(pytest.fail) is None
    for step in (5, 10, 15):
        checkpoints.save(step, {"model": {"a.b": torch.full((2,), float(step))}, "meter": {}})
    assert [p.name for p in checkpoints.paths()] == ["step-00000010.safetensors", "step-00000015.safetensors"]
    step, parts = checkpoints.load_latest(pytest.fail)
    assert step == 15
    assert parts["model"]["a.b"].tolist() == [15, 15]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_file_that_is_not_safetensors_is_named(tmp_path):
    path = tmp_path / "step-00000001.safetensors"
    torch.save({"a": torch.zeros(2)}, path)  # a pickle under our name is not even looked into
    with pytest.raises(NPMatchError, match=r"step-00000001\.safetensors"):
        load_tensors(path)


def test_a_resumed_log_has_no_gap_and_no_repeat(tmp_path):
    recorder = Recorder(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    for step in (5, 10, 15):
        recorder.write("train", step, {"loss": 1.0 / step, "seconds": float(step)})
    recorder.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 20, "lo')  # torn by a crash
    recorder = Recorder(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", resume_at=10)
    assert recorder.seconds_before == 10
    recorder.write("train", 15, {"loss": 2.0})
    recorder.close()
    assert [(r["step"], r["loss"]) for r in RunFolder(tmp_path).records()] == [(5, 0.2), (10, 0.1), (15, 2.0)]
