"""Outputs replace neither the files of a run nor what people wrote, unless --overwrite says so."""

import csv
import shutil

import pytest

from few_photos import save_photo
from npmatch.cli import main


@pytest.fixture
def run(tiny_run, tmp_path):
    """A copy of a run, with a label that somebody gave."""
    folder = shutil.copytree(tiny_run.folder, tmp_path / "run")
    (folder / "labels.csv").write_text("path,label\n#5,1\n")
    return folder


@pytest.fixture
def predict(run, tmp_path):
    for i in range(2):
        save_photo(tmp_path / "new" / f"{i}.png", seed=i)
    return ["predict", str(run), str(tmp_path / "new"), "--device", "cpu"]


@pytest.fixture
def suggest(run):
    return ["suggest", str(run), "-n", "3", "--device", "cpu"]


def test_no_output_replaces_a_file_of_a_run(run, predict, suggest, capsys):
    before = {file: file.read_bytes() for file in run.iterdir() if file.is_file()}
    commands = [
        [*predict, "-o", str(run / "labels.csv")],
        [*predict, "-o", str(run / "labels.backup.csv")],
        [*predict, "-o", str(run / "metrics.jsonl")],
        [*suggest, "-o", str(run / "labels.csv")],
        [*suggest, "--label-studio", str(run / "split.json")],
        ["export", str(run), "-o", str(run / "model.safetensors")],
        ["export", str(run), "--format", "hub", "-o", str(run)],
    ]
    for command in commands:
        assert main([*command, "--overwrite"]) == 2
        assert "belongs to the run in" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in run.iterdir() if file.is_file()} == before


def test_suggest_keeps_the_labels_that_were_filled_in(suggest, tmp_path, capsys):
    table = tmp_path / "todo.csv"
    for _ in range(2):  # nobody has filled in anything
        assert main([*suggest, "-o", str(table)]) == 0
    with open(table, newline="") as file:
        rows = list(csv.reader(file))
    rows[2][1] = "7"
    with open(table, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    filled = table.read_bytes()
    assert main([*suggest, "-o", str(table)]) == 2
    assert "todo.csv: exists already; choose another -o, or replace it with --overwrite\n" in capsys.readouterr().err
    assert table.read_bytes() == filled
    assert main([*suggest, "-o", str(table), "--overwrite"]) == 0
    assert table.read_bytes() != filled


@pytest.mark.parametrize("name", ["tasks.json", "tasks.xml"])
def test_suggest_replaces_neither_tasks_nor_interface(suggest, tmp_path, capsys, name):
    (tmp_path / name).write_text("mine")
    assert main([*suggest, "--label-studio", str(tmp_path / "tasks.json")]) == 2
    assert f"{name}: exists already" in capsys.readouterr().err
    assert [file.name for file in tmp_path.glob("tasks.*")] == [name]
    assert main([*suggest, "--label-studio", str(tmp_path / "tasks.json"), "--overwrite"]) == 0


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_predict_replaces_its_own_tables_only(predict, tmp_path, capsys, ending):
    table = tmp_path / f"out.{ending}"
    for _ in range(2):
        assert main([*predict, "-o", str(table)]) == 0
    for content in (b"path,label\n1.png,cat\n", b'{"path": "1.png"}\n', b"[1]\n", b"\xff\x00"):
        table.write_bytes(content)
        assert main([*predict, "-o", str(table)]) == 2
        assert "exists already" in capsys.readouterr().err
        assert table.read_bytes() == content
    assert main([*predict, "-o", str(table), "--overwrite"]) == 0


def test_an_export_replaces_neither_another_readme_nor_another_model(run, tmp_path, capsys):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    hub = ["export", str(run), "--format", "hub", "-o", str(folder)]
    assert main(hub) == 2
    assert "README.md: exists already" in capsys.readouterr().err
    assert [file.name for file in folder.iterdir()] == ["README.md"]
    assert main([*hub, "--overwrite"]) == 0
    assert main(hub) == 2, "its own model may have been edited"
    file = tmp_path / "model.onnx"
    file.write_text("mine")
    assert main(["export", str(run), "-o", str(file)]) == 2
    assert file.read_text() == "mine"


def test_a_name_that_no_file_can_have_is_one_line(predict, tmp_path, capsys):
    assert main([*predict, "-o", str(tmp_path / f"{'x' * 300}.csv")]) == 2
    error = capsys.readouterr().err
    assert "cannot be written (File name too long)" in error
    assert error.count("\n") == 1


def test_a_report_replaces_no_other_page(run, tmp_path, capsys):
    page = tmp_path / "index.html"
    page.write_text("mine")
    assert main(["report", str(run), "-o", str(page), "--device", "cpu"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["report", str(run), "-o", str(page), "--device", "cpu", "--overwrite"]) == 0
    assert main(["report", str(run), "--device", "cpu"]) == 0
