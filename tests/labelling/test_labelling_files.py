"""Labels from files: different paths can name the same image, and a file with an invalid row changes nothing."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import npmatch
from few_photos import save_photo, save_photos
from npmatch.cli import main
from npmatch.data import decode_image
from npmatch.errors import NPMatchError
from npmatch.labelling.files import read_label_file, take_labels
from npmatch.labelling.tables import labelled_since
from npmatch.runs.label_book import LabelBook
from npmatch.runs.open import open_run_data
from tiny import TINY


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a folder of 3 classes (a, b, c) with labelled, unlabelled and test images, and 4 images elsewhere."""
    place = tmp_path_factory.mktemp("labelling")
    save_photos(place / "photos", classes="abc", labels=3, unlabeled=0)
    for folder, count in (("photos/unlabeled/in", 12), ("more", 4)):
        for number in range(count):
            save_photo(place / folder / f"{number}.png", seed=100 * count + number)
    (place / "photos/unlabeled/in/broken.png").write_text("no image")  # which the run leaves out
    os.rename(place / "photos/unlabeled/in/11.png", place / 'photos/unlabeled/in/= "é",\n.png')
    overrides = {**TINY, "training.iterations": 2, "data.image_size": 8, "data.validation": 0.3}
    npmatch.fit(data=place / "photos", out=place / "run", overrides=overrides, quiet=True, device="cpu")
    return place


@pytest.fixture
def place(trained, tmp_path, monkeypatch):
    """A copy of the run to write into, in the working directory of `trained`."""
    run = shutil.copytree(trained / "run", tmp_path / "run")
    (tmp_path / "photos").symlink_to(trained / "photos")
    monkeypatch.chdir(trained)
    return run


def write_rows(path, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    return path


def take(run, *rows):
    return take_labels(open_run_data(run), read_label_file(write_rows(run.parent / "given.csv", rows)))


def labels(run):
    return LabelBook(run, "abc").labels


def test_a_path_may_be_a_name_relative_or_absolute(place, trained):
    report = take(
        place,
        ("unlabeled/in/0.png", "a"),
        ("photos/unlabeled/in/1.png", "b"),
        (str(trained / "photos/unlabeled/in/2.png"), " c "),
        (" photos/unlabeled/../unlabeled/in/3.png", "a"),
        ("unlabeled/in/4.png", ""),
        ("more/0.png", "c"),
        ('unlabeled/in/= "é",\n.png', "b"),
    )
    expected = {f"unlabeled/in/{i}.png": label for i, label in enumerate("abca")}
    assert labels(place) == {**expected, str(trained / "more/0.png"): "c", 'unlabeled/in/= "é",\n.png': "b"}
    assert (len(report.new), report.empty, report.total) == (6, 1, 6)


def test_names_that_are_not_utf8_go_through_suggest_label_and_the_book(place, tmp_path, capsys):
    odd = tmp_path / "odd"
    for number, name in enumerate([b"caf\xe9.png", b"caf\\xe9.png", b"plain.png"]):
        save_photo(odd / os.fsdecode(name), seed=number)
    table = tmp_path / "todo.csv"
    words = ["suggest", str(place), "--unlabeled", str(odd), "--strategy", "uncertainty", "-o", str(table)]
    assert main([*words, "--device", "cpu"]) == 0
    with open(table, encoding="utf-8", newline="") as file:  # a strict reader
        rows = [(row["path"], "abc"[i]) for i, row in enumerate(csv.DictReader(file))]
    assert main(["label", str(place), str(write_rows(table, rows))]) == 0
    assert labels(place).keys() == {os.path.join(odd, name) for name in os.listdir(odd)}
    (place / "labels.csv").read_text("utf-8")
    os.unlink(odd / os.fsdecode(b"caf\xe9.png"))
    take(place, (str(odd / "caf\\xe9.png"), "b"))  # as a program writes it that knows nothing of escapes
    assert labels(place)[str(odd / "caf\\xe9.png")] == "b"


def test_conflicts_are_reported_and_the_newer_label_wins(place):
    run = open_run_data(place)
    trained_on = run.dataset.train.names[int(run.split.labeled[0])]
    take(place, ("unlabeled/in/0.png", "a"), ("unlabeled/in/1.png", "b"))
    report = take(place, ("unlabeled/in/0.png", "c"), ("unlabeled/in/1.png", "b"), (trained_on, "c"))
    assert report.changed == {"unlabeled/in/0.png": ("a", "c")}
    assert report.contradicted == {trained_on: ("a", "c")}
    assert report.same == ["unlabeled/in/1.png"]
    assert labels(place) == {"unlabeled/in/0.png": "c", "unlabeled/in/1.png": "b", trained_on: "c"}
    assert take(place, (trained_on, "c")).same == [trained_on]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("unlabeled/in/99.png", "a"), "line 3: unlabeled/in/99.png is neither an image of the run's data nor a file"),
        (("unlabeled/in/1.png", "d"), "line 3: unknown class 'd'"),
        (("photos/test/a/0.png", "a"), "line 3: photos/test/a/0.png is a test image"),
        (("test/a/0.png", "a"), "line 3: test/a/0.png is a test image"),
        (("unlabeled/in/0.png", "b"), r"line 3: unlabeled/in/0.png is 'b' here and 'a' in .*line 2"),
        (("unlabeled/in/broken.png", "b"), "line 3: unlabeled/in/broken.png was left out of training"),
        (("run/config.yaml", "b"), "config.yaml: not a readable image"),
    ],
)
def test_one_row_that_does_not_fit_and_nothing_is_written(place, row, message):
    with pytest.raises(NPMatchError, match=message):
        take(place, ("unlabeled/in/0.png", "a"), row)
    assert not (place / "labels.csv").exists()


def test_validation_images_take_no_label(place):
    run = open_run_data(place)
    held_out = run.dataset.train.names[int(run.split.validation[0])]
    with pytest.raises(NPMatchError, match=r"line 2: .* is held out for validation"):
        take(place, (held_out, "a"))


def studio(tmp_path, tasks):
    file = tmp_path / "export.json"
    file.write_text(json.dumps(tasks))
    return file


def task(path, *answers, **annotation):
    results = [{"from_name": "label", "type": "choices", "value": {"choices": [answer]}} for answer in answers]
    return {"id": 7, "data": {"image": "x", "path": path}, "annotations": [{"result": results, **annotation}]}


def test_label_studio_exports_are_read_in_both_forms(tmp_path):
    whole = [task("a.png", "a"), task("b.png"), task("c.png", "c", was_cancelled=True)]
    assert [row[1:] for row in read_label_file(studio(tmp_path, whole))] == [
        ("a.png", "a"),
        ("b.png", ""),
        ("c.png", ""),
    ]
    minimal = [
        {"id": 1, "image": "x", "path": "a.png", "label": "a", "annotator": 1},
        {"id": 2, "image": "/data/local-files/?d=in/b%20c.png", "choice": {"choices": ["b"]}},
        {"id": 3, "image": "x", "path": "c.png"},
    ]
    expected = [("a.png", "a"), ("in/b c.png", "b"), ("c.png", "")]
    assert [row[1:] for row in read_label_file(studio(tmp_path, minimal))] == expected


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([task("a.png", "a", "b")], "task 7: labelled a and b; settle on one"),
        ([{"id": 3, "image": "/data/upload/1/a.png", "label": "a"}], "task 3: names no file"),
        ({"a": 1}, "not an export of Label Studio"),
        ([1], "not an export of Label Studio"),
    ],
)
def test_exports_that_say_too_much_or_too_little_are_one_line(tmp_path, tasks, message):
    with pytest.raises(NPMatchError, match=message):
        read_label_file(studio(tmp_path, tasks))


ODD_EXPORTS = {
    "nested without end": "[" * 100_000,
    "annotations in words": '[{"annotations": "x"}]',
    "annotations that are numbers": '[{"annotations": [1]}]',
    "a result that is a number": '[{"annotations": [{"result": 1}]}]',
    "choices within choices": '[{"annotations": [{"result": [{"value": {"choices": [["a"]]}}]}], "path": "x"}]',
    "a choice that is a number": '[{"label": 5, "path": "unlabeled/in/0.png"}]',
    "choices that are a number": '[{"label": {"choices": 3}, "path": "unlabeled/in/0.png"}]',
    "a list of numbers": '[{"label": [7], "path": "unlabeled/in/0.png"}]',
    "data that are a number": '[{"data": 5, "label": "a"}]',
    "data that are missing": '[{"data": null, "label": "a"}]',
    "a path with NUL": '[{"label": "a", "path": "unlabeled/in/0.png\\u0000"}]',
    "a path that no file can have": '[{"label": "a", "path": "\\ud800.png"}]',
    "a class that no file can have": '[{"label": "\\ud800", "path": "unlabeled/in/0.png"}]',
    "an address with NUL": '[{"label": "a", "image": "/data/local-files/?d=a%00.png"}]',
}


@pytest.mark.parametrize("name", ODD_EXPORTS)
def test_odd_exports_are_one_line_and_change_nothing(place, tmp_path, capsys, name):
    file = tmp_path / "export.json"
    file.write_text(ODD_EXPORTS[name])
    assert main(["label", str(place), str(file)]) == 2
    error = capsys.readouterr().err
    assert "export.json" in error
    assert error.count("\n") == 1
    assert labels(place) == {}


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"annotations": None}, ""),
        ({"annotations": [{"result": [{"value": None}]}]}, ""),
        ({"annotations": [{"result": None}]}, ""),
        ({"annotations": [{"result": [{"value": {"choices": "ab"}}]}]}, "ab"),
        ({"label": None}, ""),
    ],
)
def test_exports_without_an_answer_have_an_empty_label(tmp_path, fields, label):
    (row,) = read_label_file(studio(tmp_path, [{"path": "a.png", **fields}]))
    assert row[1:] == ("a.png", label)


def test_suggest_label_train_on_the_command_line(place, tmp_path, capsys):
    """Suggestions go out as a table and as tasks, come back as labels, and become part of the next run."""
    table, tasks = tmp_path / "todo.csv", tmp_path / "todo.json"
    assert (
        main(["suggest", str(place), "-n", "5", "-o", str(table), "--label-studio", str(tasks), "--device", "cpu"]) == 0
    )
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    assert all(os.path.isfile(row["path"]) and row["label"] == "" for row in rows)
    written = json.loads(tasks.read_text())
    assert [t["data"]["path"] for t in written] == [row["path"] for row in rows]
    assert all(
        t["predictions"][0]["result"][0]["value"]["choices"] == [r["predicted"]]
        for t, r in zip(written, rows, strict=True)
    )
    assert '<Choice value="b"/>' in (tmp_path / "todo.xml").read_text()
    answered = [{**t, "annotations": [{"result": t["predictions"][0]["result"]}]} for t in written[:2]]
    export = studio(tmp_path, answered)
    write_rows(table, [(row["path"], "b") for row in rows[2:4]] + [(rows[4]["path"], "")])
    capsys.readouterr()
    assert main(["label", str(place), str(export)]) == 0
    assert main(["label", str(place), str(table), "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {key: last[key] for key in ("new", "empty", "total", "changed")} == {
        "new": 2,
        "empty": 1,
        "total": 4,
        "changed": [],
    }
    again = main(["suggest", str(place), "-n", "20", "--json", "--device", "cpu"])
    left = [row["path"] for row in json.loads(capsys.readouterr().out)["suggestions"]]
    assert again == 0
    assert len(left) == 8
    assert not {row["path"] for row in rows[:4]} & set(left)
    assert main(["train", "--resume-from", str(place), "--json", "--device", "cpu"]) == 0
    second = json.loads(capsys.readouterr().out)["run"]
    assert second == f"{place}-round2"
    assert len(open_run_data(second).split.labeled) == len(open_run_data(place).split.labeled) + 4


def test_suggestions_from_another_folder_leave_out_what_has_a_label_and_name_what_is_broken(place, trained, capsys):
    (trained / "more" / "broken.png").write_text("no image")
    LabelBook(place, "abc").set(str(trained / "more" / "1.png"), "a")
    for folder, expected in (("more", [0, 2, 3]), ("photos", range(12))):
        code = main(["suggest", str(place), "--unlabeled", folder, "-n", "50", "--json", "--device", "cpu"])
        answer = json.loads(capsys.readouterr().out)
        found = [row["path"] for row in answer["suggestions"]]
        assert len(found) == len(expected)
        assert not any("/labeled/" in path or "/test/" in path or "more/1.png" in path for path in found)
        assert code == (1 if folder == "more" else 0)
        assert [line.split(":")[0] for line in answer["skipped"]] == (
            [str(trained / "more/broken.png")] if code else []
        )
    (trained / "more" / "broken.png").unlink()


def test_images_labelled_since_count_wherever_they_lie(place, trained):
    book = LabelBook(place, "abc")
    for name in (str(trained / "more" / "1.png"), "unlabeled/in/3.png", str(trained / "gone.png")):
        book.set(name, "a")
    run = open_run_data(place)
    known = labelled_since(run, run.book().labels)
    expected = [decode_image(trained / file, 8) for file in ("photos/unlabeled/in/3.png", "more/1.png")]
    assert torch.equal(known.take(torch.arange(len(known))), torch.stack(expected))


def test_a_model_alone_can_suggest_from_a_folder(place, tmp_path, capsys):
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("model.safetensors", "config.json"):
        shutil.copy(place / name, alone)
    assert main(["suggest", str(alone), "--unlabeled", "more", "--json", "--device", "cpu"]) == 0
    assert len(json.loads(capsys.readouterr().out)["suggestions"]) == 4


def test_images_without_files_go_to_label_studio_within_the_task(tiny_run, tmp_path, capsys):
    tasks = tmp_path / "digits.json"
    words = ["suggest", str(tiny_run.folder), "-n", "2", "--label-studio", str(tasks), "--device", "cpu"]
    assert main(words) == 0
    image = json.loads(tasks.read_text())[0]["data"]
    assert image["image"].startswith("data:image/png;base64,")
    assert image["path"].startswith("#")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["suggest", "run", "-o", "x.txt"], "x.txt: give a name that ends in .csv"),
        (["suggest", "run", "--strategy", "unsure"], "unknown strategy 'unsure'"),
        (["suggest", "run", "-n", "0"], "ask for 1 or more"),
        (["suggest", "run", "--unlabeled", "none"], "none: no such file or folder"),
        (["suggest", "run", "--unlabeled", "notes.txt"], "notes.txt: no unlabelled image in it can be read; "),
        (["suggest", "nowhere"], "nowhere: no such run"),
        (["suggest", "model"], "model: has no config.yaml, which describes the data"),
        (["evaluate", "model"], "model: has no config.yaml, which describes the data"),
        (["evaluate", "begun"], "begun: this run is not finished; resume it with: npmatch train --out begun --resume"),
        (["label", "nowhere", "x.csv"], "nowhere: no such run"),
        (["label", "run", "x.csv"], "x.csv: cannot be read"),
    ],
)
def test_bad_words_are_one_line(place, capsys, monkeypatch, words, message):
    monkeypatch.chdir(place.parent)
    Path("notes.txt").write_text("no image")
    for folder, files in (("model", ("config.json", "model.safetensors")), ("begun", ("config.yaml", "split.json"))):
        Path(folder).mkdir(exist_ok=True)
        for name in files:
            shutil.copy(place / name, folder)
    assert main(words) == 2
    found = capsys.readouterr()
    assert message in found.err
    assert len(found.err.splitlines()) == 1


@pytest.fixture
def held_out(place, tmp_path):
    """Links to and copies of a test image and a validation image, and one other image, in a folder of their own."""
    run = open_run_data(place)
    files = {"test": run.dataset.test.images.path(0), "validation": run.file(int(run.split.validation[0]))}
    folder = tmp_path / "found"
    save_photo(folder / "new.png", seed=7)
    for kind, file in files.items():
        (folder / f"{kind} link.png").symlink_to(file)
        shutil.copy(file, folder / f"{kind} copy.png")
    return folder


def test_links_and_copies_of_held_out_images_get_no_label(place, held_out):
    for kind, words in (("test", "the test image test/a/0.png"), ("validation", "which is held out for validation")):
        for how in ("link", "copy"):
            with pytest.raises(NPMatchError, match=rf"line 2: .*{kind} {how}\.png has the same content as .*{words}"):
                take(place, (str(held_out / f"{kind} {how}.png"), "a"))
    take(place, (str(held_out / "new.png"), "a"))
    assert labels(place) == {str(held_out / "new.png"): "a"}


def test_links_and_copies_of_held_out_images_are_not_suggested(place, held_out, capsys):
    assert main(["suggest", str(place), "--unlabeled", str(held_out), "--json", "--device", "cpu"]) == 0
    assert [Path(row["path"]).name for row in json.loads(capsys.readouterr().out)["suggestions"]] == ["new.png"]


def test_a_table_edited_by_hand_cannot_bring_a_test_image_into_training(place, held_out, tmp_path):
    write_rows(place / "labels.csv", [(str(held_out / "test copy.png"), "b")])
    with pytest.raises(NPMatchError, match=r"labels\.csv: labels .*test copy\.png, which has the content of the test"):
        npmatch.fit(resume_from=place, out=tmp_path / "next", quiet=True, device="cpu")
    assert not (tmp_path / "next").exists()


def test_a_picture_of_a_test_image_in_memory_gets_no_label(tiny_run, tmp_path):
    run = open_run_data(shutil.copytree(tiny_run.folder, tmp_path / "run"))
    pixels = run.dataset.test.images.take(torch.tensor([5]))[0, 0].numpy()
    Image.fromarray(pixels).save(tmp_path / "five.png")
    rows = read_label_file(write_rows(tmp_path / "given.csv", [(str(tmp_path / "five.png"), "3")]))
    with pytest.raises(NPMatchError, match=r"five\.png has the same content as the test image #5"):
        take_labels(run, rows)
