"""The table of answers in a folder: changes keep what others wrote, and training understands every answer."""

import errno
import subprocess
import sys
import threading

import pytest

import npmatch
from few_photos import WORDS, save_photo
from npmatch.cli import main
from npmatch.data import load_dataset
from npmatch.data.sources.audited import write_audited
from npmatch.data.sources.folders import list_folder, list_pictures, list_unlabeled
from npmatch.data.sources.label_table import BROKEN, NONE_OF_THESE, Answer
from npmatch.errors import NPMatchError
from npmatch.labelling.folder_labels import FolderLabels
from npmatch.labelling.tables import suggest_for_run
from npmatch.runs.evaluate import evaluate_run
from npmatch.runs.label_book import LabelsNotSavedError
from npmatch.runs.open import open_run_data

CAT, DOG = Answer("cat"), Answer("dog")


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(["a.png", "b.png", "c.png", "deep/d.png", "test/cat/t.png"]):
        save_photo(tmp_path / "photos" / name, seed)
    return tmp_path / "photos"


def test_images_that_are_kept_for_an_audit_get_no_new_answer(folder):
    labels = FolderLabels(folder)
    labels.set("a.png", CAT)
    write_audited(folder, {"a.png": "runs/one", "b.png": "runs/one"})
    for answer in (CAT, Answer(set_aside=BROKEN)):
        with pytest.raises(NPMatchError, match=r"b\.png: is kept for an audit of runs/one"):
            labels.change({"c.png": DOG, "b.png": answer})
    assert labels.labels == {"a.png": CAT}
    labels.set("a.png", DOG)  # as one class is merged into another
    labels.remove("a.png")


def test_answers_are_in_the_file_at_once_and_can_be_taken_back(folder):
    labels = FolderLabels(folder)
    labels.set("deep/d.png", CAT)
    labels.set("a.png", Answer(set_aside=BROKEN))
    assert (folder / "labels.csv").read_text().splitlines() == ["path,label,answer", "deep/d.png,cat,", "a.png,,broken"]
    assert FolderLabels(folder).labels == {"deep/d.png": CAT, "a.png": Answer(set_aside=BROKEN)}
    labels.remove("deep/d.png")
    assert FolderLabels(folder).labels == {"a.png": Answer(set_aside=BROKEN)}


def test_rows_columns_and_the_separator_of_others_stay(folder):
    table = folder / "labels.csv"
    table.write_bytes("\ufeffpath;label;who\n./a.png;dog;Zoë; \nb.png;;\n".replace("; \n", "\n").encode())
    labels = FolderLabels(folder)
    labels.set("b.png", CAT)
    assert table.read_bytes().decode() == "\ufeffpath;label;who\r\n./a.png;dog;Zoë\r\nb.png;cat;\r\n"
    labels.set("a.png", Answer(set_aside=NONE_OF_THESE))
    assert table.read_bytes().decode().splitlines()[1] == "./a.png;;Zoë;none of these"
    labels.remove("b.png")
    assert labels.labels == {"a.png": Answer(set_aside=NONE_OF_THESE)}


def test_changes_of_other_writers_are_kept(folder):
    one, other = FolderLabels(folder), FolderLabels(folder)
    one.set("a.png", CAT)
    other.set("b.png", DOG)
    one.set("c.png", DOG)
    with (folder / "labels.csv").open("a") as table:
        table.write("deep/d.png,cat\n")
    other.set("a.png", DOG)
    assert FolderLabels(folder).labels == {"a.png": DOG, "b.png": DOG, "c.png": DOG, "deep/d.png": CAT}


def test_many_writers_at_once_lose_nothing(folder):
    code = (
        "import sys; from pathlib import Path; from npmatch.data.sources.label_table import Answer\n"
        "from npmatch.labelling.folder_labels import FolderLabels\n"
        "labels = FolderLabels(Path(sys.argv[1]))\n"
        "[labels.set(f'other-{i}.png', Answer('dog')) for i in range(30)]"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    labels = FolderLabels(folder)

    def write(first):
        for i in range(first, first + 15):
            labels.set(f"own-{i}.png", CAT)

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert child.wait(60) == 0
    assert len(labels.labels) == 60


def test_training_takes_labels_and_leaves_out_what_was_set_aside(folder):
    labels = FolderLabels(folder)
    labels.change({"a.png": CAT, "b.png": DOG, "c.png": Answer(set_aside=NONE_OF_THESE)})
    dataset = load_dataset("folder", folder)
    assert dataset.train.names == ["a.png", "b.png", "deep/d.png"]
    assert list_folder(folder).remarks["set-aside"] == ["c.png"]
    assert [file.name for file in list_unlabeled(folder).files] == ["deep/d.png"]
    assert [file.name for file in list_pictures(folder).files] == ["a.png", "b.png", "c.png", "deep/d.png"]
    assert "hidden" not in list_folder(folder).remarks, "the lock beside the table is nobody's picture"


@pytest.fixture
def run(folder):
    """A run on the folder, and labels of other images and of a new class given since it began."""
    labels = FolderLabels(folder)
    labels.change({"a.png": CAT, "b.png": DOG})
    settings = {**WORDS, "training.iterations": 4}
    found = npmatch.fit(data=folder, out=folder.parent / "run", quiet=True, device="cpu", overrides=settings)
    labels.change({"c.png": Answer("frog"), "b.png": CAT})
    return found.folder


def test_a_run_keeps_the_labels_of_its_start(run, folder):
    assert open_run_data(run).dataset.class_names == ("cat", "dog")
    assert evaluate_run(run, device="cpu").scores["n"] == 1
    assert main(["train", "--out", str(run), "--resume", "--device", "cpu"]) == 0, "it is finished"
    (run / "model.safetensors").unlink()
    again = npmatch.fit(out=run, resume=True, quiet=True, device="cpu")
    assert again.scores["n"] == 1
    continued = npmatch.fit(resume_from=run, out=run.parent / "run2", quiet=True, device="cpu")
    assert open_run_data(continued.folder).dataset.class_names == ("cat", "dog")


def test_images_answered_since_a_run_began_are_not_suggested_again(run):
    assert [row.name for row in suggest_for_run(run, 5, device="cpu").rows] == ["deep/d.png"]


def test_a_label_filled_in_later_wins_over_an_answer(folder):
    (folder / "labels.csv").write_text("path,label,answer\na.png,cat,broken\nb.png,dog,my own words\nc.png,,hm\n")
    assert FolderLabels(folder).labels == {"a.png": CAT, "b.png": DOG}


def test_a_table_that_contradicts_itself_is_left_as_it_is(folder):
    table = folder / "labels.csv"
    table.write_text("path,label\na.png,cat\n./a.png,dog\n")
    with pytest.raises(NPMatchError, match=r"labels\.csv, line 3: \./a\.png has the label 'cat' too"):
        FolderLabels(folder).set("b.png", CAT)
    assert table.read_text() == "path,label\na.png,cat\n./a.png,dog\n"


@pytest.mark.parametrize("name", ["", " cat", "c\nat", "x" * 101, "\u202ecat"])
def test_class_names_must_fit_on_one_line(folder, name):
    with pytest.raises(NPMatchError, match="printable characters"):
        FolderLabels(folder).set("a.png", Answer(name or " "))
    assert not (folder / "labels.csv").exists()


def test_a_full_disk_changes_nothing(folder, monkeypatch):
    labels = FolderLabels(folder)
    labels.set("a.png", CAT)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("npmatch.labelling.folder_labels.write_atomically", full)
    with pytest.raises(LabelsNotSavedError, match="No space left"):
        labels.set("b.png", CAT)
    assert labels.labels == {"a.png": CAT}
