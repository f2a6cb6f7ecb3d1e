"""The first labels by Label Studio: tasks for a folder without a run, and its export back into the folder's table."""

import json
from pathlib import Path

import pytest

from few_photos import save_photos
from npmatch.cli import main
from npmatch.errors import NPMatchError
from npmatch.labelling.files import read_label_file
from npmatch.labelling.folder_labels import FolderLabels, take_folder_labels
from npmatch.labelling.label_studio import labelling_interface


def result(control: str, value: dict) -> dict:
    return {"from_name": control, "to_name": "image", "value": value}


def export(file: Path, tasks: list[dict], answers: list[dict]) -> Path:
    """An export of Label Studio in which every task has one answer."""
    labelled = [{**t, "annotations": [{"result": [a]}]} for t, a in zip(tasks, answers, strict=True)]
    file.write_text(json.dumps(labelled))
    return file


@pytest.fixture
def photos(tmp_path):
    return save_photos(tmp_path / "photos")


def names_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob("unlabeled/*"))


def test_the_names_of_classes_can_be_typed_where_none_is_known():
    assert "<Choices" not in labelling_interface((), may_name_others=True)
    assert '<TextArea name="class"' in labelling_interface((), may_name_others=True)
    both = labelling_interface(("cat", "a & b"), may_name_others=True)
    assert '<Choice value="a &amp; b"/>' in both
    assert "<TextArea" in both
    assert "<TextArea" not in labelling_interface(("cat",))


def test_tasks_go_out_and_typed_or_chosen_classes_come_back(photos, tmp_path, capsys):
    tasks_file = tmp_path / "tasks.json"
    words = ["suggest", "--data", str(photos), "-n", "3", "--label-studio", str(tasks_file), "--device", "cpu"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"npmatch label {photos} EXPORT.json" in said
    assert "<TextArea" in tasks_file.with_suffix(".xml").read_text()
    tasks = json.loads(tasks_file.read_text())
    assert len(tasks) == 3
    assert main(words) == 2, "an existing file is not replaced"

    answers = [
        result("class", {"text": ["owl "]}),
        result("label", {"choices": ["cat"]}),
        result("class", {"text": []}),
    ]
    file = export(tmp_path / "export.json", tasks, answers)
    assert main(["label", str(photos), str(file)]) == 0
    assert "2 new or changed" in capsys.readouterr().out
    given = {name: answer.label for name, answer in FolderLabels(photos).labels.items()}
    expected = [Path(task["data"]["path"]).relative_to(photos).as_posix() for task in tasks]
    assert given == {expected[0]: "owl", expected[1]: "cat"}
    assert main(["label", str(photos), str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["new"] == 0, "nothing is counted twice"


def test_json_min_holds_typed_classes_too(photos, tmp_path):
    name = names_of(photos)[0]
    file = tmp_path / "min.json"
    file.write_text(json.dumps([{"id": 1, "path": str(photos / name), "class": "owl"}]))
    assert [row.label for row in read_label_file(file)] == ["owl"]
    take_folder_labels(photos, read_label_file(file))
    assert FolderLabels(photos).labels[name].label == "owl"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("{0},cat\nno/such.png,dog\n", r"line 3: no/such.png is no file in .*; correct the path or remove the row"),
        ("{0},cat\n{0},dog\n", "is 'dog' here and 'cat' before"),
        ("{0}, c\x07at\n", "give a name of 1 to 100 printable characters"),
    ],
)
def test_all_rows_are_taken_or_none(photos, tmp_path, rows, message):
    file = tmp_path / "labels.csv"
    file.write_text("path,label\n" + rows.format(names_of(photos)[0]))
    before = (photos / "labels.csv").exists()
    with pytest.raises(NPMatchError, match=message):
        take_folder_labels(photos, read_label_file(file))
    assert (photos / "labels.csv").exists() == before


def test_images_of_an_audit_get_no_label(photos, tmp_path):
    name = names_of(photos)[0]
    (photos / "audited.csv").write_text(f"path,label,run\n{name},,runs/a\n")
    file = tmp_path / "labels.csv"
    file.write_text(f"path,label\n{name},cat\n")
    with pytest.raises(NPMatchError, match="is kept for an audit of runs/a"):
        take_folder_labels(photos, read_label_file(file))
