"""A run's folder: one module knows its file names, one meaning of finished, one lock."""

import shutil
import sys
from pathlib import Path

import pytest

import npmatch
from few_photos import WORDS, save_photos
from npmatch.compare.gather import find_runs
from npmatch.errors import NPMatchError
from npmatch.runs.folder import RunFolder
from npmatch.web.site import Site

PACKAGE = Path(npmatch.__file__).parent
# Names of a run's files alone; those of a saved model (config.json, model.safetensors) and of its calibration are
# used wherever a model lies.
OWN_NAMES = (
    *("given-labels.csv", "split.json", "data.json", "quarantine.json", "environment.json", "config.yaml"),
    *("metrics.jsonl", "checkpoints", "test.parquet"),
)


@pytest.mark.parametrize("name", OWN_NAMES)
def test_only_the_folder_knows_the_names_of_its_files(name):
    users = [path for path in PACKAGE.rglob("*.py") if f'"{name}"' in path.read_text(encoding="utf-8")]
    assert users == [PACKAGE / "runs" / "folder.py"]


def test_the_names_are_those_a_run_leaves(tiny_run):
    run = RunFolder(tiny_run.folder)
    missing = {name for name, path in vars(run).items() if not path.exists()}
    # Nothing was left out, no labels were given, nothing was audited or forecast, and no network was frozen.
    assert missing == {"quarantine", "given_labels", "folder_labels", "labels", "audit", "forecast", "features"}


def cut_final_line(folder):
    log = RunFolder(folder).log
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))


def remove_weights(folder):
    RunFolder(folder).model_weights.unlink()


@pytest.mark.parametrize("damage", [cut_final_line, remove_weights])
def test_a_run_is_finished_to_all_or_to_none(tiny_run, tmp_path, capfd, damage):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run.folder, folder)

    def opinions():
        def accepts(ask):
            try:
                ask(folder)
            except NPMatchError as error:
                return "finished" not in str(error)
            return True

        return [
            RunFolder(folder).is_finished(),
            accepts(npmatch.load),
            accepts(lambda run: find_runs([run])),
            Site(folder)._stage() == "opening",
        ]

    assert opinions() == [True] * 4
    damage(folder)
    assert opinions() == [False] * 4
    npmatch.fit(out=folder, resume=True, device="cpu")
    assert "resuming" in capfd.readouterr().err
    assert opinions() == [True] * 4


def test_a_model_without_its_log_is_finished(tiny_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run.folder, folder)
    RunFolder(folder).log.unlink()
    assert RunFolder(folder).is_finished()
    npmatch.load(folder)


def test_a_system_without_locks_gives_a_warning(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr("npmatch.files.find_spec", lambda name: None)
    npmatch.fit(data=save_photos(tmp_path / "photos"), out=tmp_path / "run", overrides=WORDS, device="cpu", quiet=True)
    err = " ".join(capfd.readouterr().err.split())
    assert "no file locks" in err
    assert "start no second process in this folder" in err
