"""The progress of long work, for a program that has started it."""

import json

import pytest

from npmatch.training.display import PROGRESS_VARIABLE, counting


def test_progress_is_in_the_file_that_the_environment_names(tmp_path, monkeypatch):
    file = tmp_path / "progress.json"
    monkeypatch.setenv(PROGRESS_VARIABLE, str(file))
    with counting("heads", 3, quiet=True) as advance:
        begun = {"title": "heads", "done": 0, "total": 3, "seconds": pytest.approx(0, abs=5)}
        assert json.loads(file.read_text()) == begun
        advance(1)
        advance(2)
    assert json.loads(file.read_text())["done"] == 3


def test_a_file_that_cannot_be_written_stops_no_work(tmp_path, monkeypatch):
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "missing" / "progress.json"))
    with counting("heads", 1, quiet=True) as advance:
        advance(1)
    assert list(tmp_path.iterdir()) == []
