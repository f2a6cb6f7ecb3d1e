"""Errors are one line and have their own exit codes, for `npmatch` and for another program that uses its runner."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

from npmatch.cli import main, run_app
from npmatch.errors import InterruptedRunError, NPMatchError
from npmatch.user_code import refuse_code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "digits-41"], "unknown recipe 'digits-41'; did you mean 'digits-40'?"),
        (["train", "digits-40", "--algorithm", "npmach"], "unknown algorithm 'npmach'; did you mean 'npmatch'?"),
        (["train", "digits-40", "training.iteration=3"], "unknown key 'training.iteration'; did you mean"),
        (["train", "digits-40", "training.iterations=x"], "training.iterations=x: must be a valid integer"),
        (["train", "digits-40", "backbone.name=wrn-28-3"], "unknown backbone 'wrn-28-3'"),
        (
            ["train", "digits-40", "augment.policy=natura"],
            "unknown augmentation policy 'natura'; did you mean 'natural'",
        ),
        (["train", "digits-40", "data.labels=3"], "labels"),
        (["train", "digits-40", "data.split=."], "npmatch: .: a folder; name a split's file, for example"),
        (["train", "digits-40", "training.iterations=0"], "training.iterations=0: must be greater than 0"),
        (["train", "digits-40", "algorithm.width=-1"], "algorithm.width=-1: must be greater than 0"),
        (["train", "digits-40", "cifar10-40"], "one recipe at a time"),
        (["train"], "nothing to train on"),
        (["train", "--data", "nowhere"], "nowhere"),
        (["train", "digits-40", "--device", "tpu"], "--device tpu"),
        (["train", "digits-40", "--sed", "1"], "--sed"),
        (["evaluate", "nowhere"], "nowhere: no such run"),
        pytest.param(
            ["train", "digits-40", "--device", "cuda"],
            "torch finds no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        (["predict", "nowhere", "x.png", "-o", "out.csv"], "nowhere: no such run"),
        (["trian"], "trian"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if words[0] == "train" and "--out" not in words:
        words = [*words, "--out", str(tmp_path / "run")]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists(), "no half-started run is left behind"


def test_a_terminal_that_knows_ascii_alone_is_enough(tiny_run):
    poor = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-m", "npmatch"]
    listed = subprocess.run([*words, "recipes"], env=poor, capture_output=True, check=False)
    assert (listed.returncode, listed.stderr) == (0, b"")
    again = ["train", "digits-40", "--out", str(tiny_run.folder), "--resume"]
    refused = subprocess.run([*words, *again], env=poor, capture_output=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.count(b"\n") == 1
    assert rb"training.iterations: 24 \u2192 1500" in refused.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_standard_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "npmatch", "recipes"]
        run = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (run.returncode, run.stderr) == (2, "npmatch: input or output: No space left on device\n")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nmore"), r"CUDA out of memory.*9 GiB"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "DefaultCPUAllocator"),
        (MemoryError(), "on this machine"),
        (OSError(5, "Input/output error", "/mnt/x"), "/mnt/x: Input/output error"),
    ],
)
def test_what_a_machine_refuses_is_one_line(monkeypatch, capfd, problem, message):
    def refuse(*a, **k):
        raise problem

    monkeypatch.setattr("npmatch.runs.fit.fit", refuse)
    assert main(["train", "digits-40"]) == 2
    said = capfd.readouterr().err
    assert re.search(message, said)
    assert said.count("\n") == 1


def test_a_mistake_of_ours_is_not_called_the_users(monkeypatch):
    monkeypatch.setattr("npmatch.runs.fit.fit", lambda *a, **k: torch.zeros(2) + torch.zeros(3))
    with pytest.raises(RuntimeError, match="must match"):
        main(["train", "digits-40"])


def other_app() -> typer.Typer:
    other = typer.Typer(add_completion=False, rich_markup_mode=None)

    @other.command()
    def fail(how: str) -> None:
        if how == "input":
            raise NPMatchError("photos: no such\nfolder")
        if how == "signal":
            raise InterruptedRunError(3, 15)
        if how == "code":
            refuse_code(["mine:Net"], Path("config.json"))
        raise typer.Exit(1 if how == "partly" else 0)

    @other.command()
    def succeed() -> None:
        """Another command, so that the first one is named."""

    return other


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["succeed"], 0, ""),
        (["fail", "partly"], 1, ""),
        (["fail", "input"], 2, r"other: photos: no such\nfolder"),
        (["fail", "signal"], 143, "other: stopped after step 3"),
        (["fail", "code"], 2, "other: config.json: would run the Python code 'mine:Net'"),
        (["fail", "code", "--trust-code"], 0, ""),
        (["--trust-code", "fail", "code"], 0, ""),
        (["fial", "input"], 2, "other: No such command 'fial'. Did you mean 'fail'?"),
        (["fail"], 2, "other: Missing argument"),
    ],
)
def test_another_program_has_the_same_errors_and_exit_codes(words, code, line, capsys):
    assert run_app(other_app(), words, "other") == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(line)
    assert err.count("\n") == bool(line)
