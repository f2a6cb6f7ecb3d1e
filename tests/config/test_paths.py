"""A run can be used from any folder: its relative paths start from the folder it was started in."""

import json

import pytest
import yaml

import npmatch
from few_photos import WORDS, save_photos
from npmatch.cli import main
from npmatch.runs.open import open_run_data
from tiny import stop_tiny


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with photos, which is the working directory; another folder is beside it."""
    save_photos(tmp_path / "project" / "photos")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def fit(**options):
    return npmatch.fit(out="runs/photos", quiet=True, device="cpu", overrides=WORDS, **options)


def test_the_images_are_found_from_another_folder(project, monkeypatch, capsys):
    scores = fit(data="photos").scores
    stored = (project / "runs/photos/config.yaml").read_bytes()
    assert yaml.safe_load(stored)["data"]["root"] == "photos"  # as typed: equal runs in two places are equal files
    monkeypatch.chdir(project.parent / "elsewhere")
    save_photos(project.parent / "elsewhere" / "photos" / "labeled")  # others of that name, which are not meant
    run = str(project / "runs" / "photos")
    assert npmatch.evaluate_run(run, device="cpu").held_out.labels.tolist() == [0, 1]
    for verb in (["evaluate", run], ["calibrate", run], ["report", run], ["suggest", run, "-n", "2", "-o", "todo.csv"]):
        assert main([*verb, "--json"]) == 0, capsys.readouterr().err
    again = npmatch.fit(out=run, resume=True, quiet=True, device="cpu")  # finished already
    assert again.scores == scores
    second = npmatch.fit(resume_from="../project/runs/photos", quiet=True, device="cpu").folder
    monkeypatch.chdir(project)
    assert open_run_data(second.resolve()).dataset.train.names == open_run_data("runs/photos").dataset.train.names


def test_a_stopped_run_goes_on_from_another_folder(project, monkeypatch):
    stop_tiny(project, 4, lambda: fit(data="photos"))
    monkeypatch.chdir(project.parent / "elsewhere")
    npmatch.fit(out="../project/runs/photos", resume=True, quiet=True, device="cpu")
    monkeypatch.chdir(project.parent)
    assert main(["evaluate", "project/runs/photos", "--json"]) == 0


def test_the_folder_of_a_continued_run_may_be_typed_from_anywhere(project, monkeypatch):
    fit(data="photos")
    npmatch.fit(resume_from="runs/photos", quiet=True, device="cpu")
    monkeypatch.chdir(project.parent / "elsewhere")
    again = npmatch.fit(resume_from="../project/runs/photos", resume=True, quiet=True, device="cpu")
    assert again.folder.name == "photos-round2"


def test_a_project_may_move_as_a_whole(project, monkeypatch):
    fit(data="photos")
    moved = project.rename(project.parent / "moved")
    monkeypatch.chdir(moved)
    assert npmatch.evaluate_run("runs/photos", device="cpu").held_out.labels.tolist() == [0, 1]
    monkeypatch.chdir(moved.parent)
    found = npmatch.evaluate_run("moved/runs/photos", data="moved/photos", device="cpu")
    assert found.held_out.labels.tolist() == [0, 1]


def test_a_run_that_does_not_say_where_it_was_started_is_read_as_it_stands(project):
    fit(data="photos")
    path = project / "runs/photos/environment.json"
    assert json.loads(path.read_text())["working_folder"] == str(project)
    for environment in ("", "[]", "{}", '{"working_folder": 3}', '{"working_folder": null}', None):
        path.unlink() if environment is None else path.write_text(environment)
        assert open_run_data("runs/photos").config.data.root == "photos"
        assert fit(data="photos", resume=True).scores
