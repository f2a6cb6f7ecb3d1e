"""Checkpoints: complete or absent, the last two, no pickle; a damaged one is detected and the one before it used."""

import os
from pathlib import Path

import pytest
import torch

from npmatch.errors import NPMatchError
from npmatch.training import Checkpoints, load_tensors, save_tensors
from same_runs import same_run
from tiny import stop_tiny, train_tiny


def step_files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_the_last_two_are_kept_and_the_newest_is_read(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.load_latest(pytest.fail) is None
    for step in (5, 10, 15):
        checkpoints.save(step, {"model": {"a.b": torch.full((2,), float(step))}, "meter": {}})
    assert [p.name for p in checkpoints.paths()] == ["step-00000010.safetensors", "step-00000015.safetensors"]
    step, parts = checkpoints.load_latest(pytest.fail)
    assert step == 15
    assert parts["model"]["a.b"].tolist() == [15, 15]


def test_a_file_that_is_not_safetensors_is_named(tmp_path):
    path = tmp_path / "step-00000001.safetensors"
    torch.save({"a": torch.zeros(2)}, path)  # a pickle, which must not be loaded
    with pytest.raises(NPMatchError, match=r"step-00000001\.safetensors"):
        load_tensors(path)


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
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (5, 10):
        checkpoints.save(step, {"model": {"w": torch.full((100,), float(step))}})
    DAMAGE[damage](checkpoints.paths()[-1])
    warnings = []
    step, parts = checkpoints.load_latest(warnings.append)
    assert (step, parts["model"]["w"][0]) == (5, 5)
    assert "step-00000010" in warnings[0]
    assert "step-00000005.safetensors, is used" in warnings[1]
    # The damaged one no longer counts as one of the last two.
    checkpoints.save(7, parts)
    assert step_files(tmp_path) == [
        "damaged-step-00000010.safetensors", "step-00000005.safetensors", "step-00000007.safetensors"
    ]  # fmt: skip


def test_the_rest_of_a_killed_write_is_deleted_with_the_next_one(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(5, {"model": {"w": torch.zeros(3)}})
    (tmp_path / "checkpoints" / "step-00000008.safetensors.tmp").write_bytes(b"half")
    checkpoints.save(10, {"model": {"w": torch.zeros(3)}})
    assert step_files(tmp_path) == ["step-00000005.safetensors", "step-00000010.safetensors"]


def test_where_every_checkpoint_is_damaged_none_is_changed_and_the_error_says_so(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(5, {"model": {"w": torch.zeros(3)}})
    DAMAGE["half of it"](checkpoints.paths()[0])
    with pytest.raises(NPMatchError, match=r"no checkpoint in it can be read"):
        checkpoints.load_latest(lambda text: None)
    assert step_files(tmp_path) == ["step-00000005.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_the_checksum_covers_every_type_and_shape(tmp_path, dtype):
    for tensor in (torch.ones((), dtype=dtype), torch.ones(3, 5, dtype=dtype), torch.ones(0, 4, dtype=dtype)):
        save_tensors(tmp_path / "file", {"t": tensor}, {"step": 3})
        loaded, scalars = load_tensors(tmp_path / "file")
        assert torch.equal(loaded["t"], tensor)
        assert scalars == {"step": 3}
    flip_a_bit(tmp_path / "file", 60)
    with pytest.raises(NPMatchError):
        load_tensors(tmp_path / "file")


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one_and_ends_the_same(tiny_run, tmp_path, capfd):
    folder = tmp_path / "run"
    stop_tiny(folder, 17)
    assert step_files(folder) == ["step-00000007.safetensors", "step-00000014.safetensors"]
    flip_a_bit(folder / "checkpoints" / "step-00000014.safetensors", -8)
    resumed = train_tiny(folder, resume=True)
    assert "checksum" in capfd.readouterr().err
    assert same_run(resumed.folder, tiny_run.folder)


def test_a_name_that_is_not_utf8_is_read(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.safetensors")
    save_tensors(path, {"a": torch.arange(3)}, {"step": 4})
    tensors, scalars = load_tensors(path)
    assert tensors["a"].tolist() == [0, 1, 2]
    assert scalars == {"step": 4}
