"""The label book: every change is on disk, errors come before anything is written, and other writers are respected."""

import pytest
import torch

from npmatch.data.labels import LabelRow, encode_label_table
from npmatch.errors import NPMatchError
from npmatch.runs.label_book import LabelBook
from npmatch.runs.open import open_run_data

CLASSES = ("cat", "dog")


def on_disk(folder):
    return LabelBook(folder, CLASSES).labels


def test_a_label_is_on_the_disk_when_the_call_returns(tmp_path):
    book = LabelBook(tmp_path, CLASSES)
    assert book.labels == {}
    assert not book.path.exists()
    book.set("a.png", "cat")
    book.set("b.png", "dog")
    book.set("a.png", "dog")
    assert on_disk(tmp_path) == {"a.png": "dog", "b.png": "dog"}
    book.remove("a.png")
    assert on_disk(tmp_path) == {"b.png": "dog"}
    assert [path.name for path in tmp_path.iterdir()] == ["labels.csv"]


def test_what_another_process_wrote_meanwhile_is_kept(tmp_path):
    page, command = LabelBook(tmp_path, CLASSES), LabelBook(tmp_path, CLASSES)
    page.set("a.png", "cat")
    command.set("b.png", "dog")
    page.set("c.png", "cat")
    assert page.labels == command.labels == {"a.png": "cat", "b.png": "dog", "c.png": "cat"}
    page.remove("c.png")
    assert on_disk(tmp_path) == {"a.png": "cat", "b.png": "dog"}


def test_a_label_that_does_not_fit_changes_nothing(tmp_path):
    book = LabelBook(tmp_path, CLASSES, {"a.png", "b.png"})
    book.set("a.png", "cat")
    with pytest.raises(NPMatchError, match=r"image 'a.png': unknown class 'catt'; did you mean 'cat'\?"):
        book.set("a.png", "catt")
    with pytest.raises(NPMatchError, match=r"image 'c.png': 'c.png' is not an image"):
        book.set("c.png", "cat")
    rows = [LabelRow("x.csv, line 2", "b.png", "dog"), LabelRow("x.csv, line 3", "c.png", "dog")]
    with pytest.raises(NPMatchError, match=r"x.csv, line 3: 'c.png'"):
        book.merge(rows)
    with pytest.raises(NPMatchError, match="has no label"):
        book.remove("b.png")
    assert book.labels == on_disk(tmp_path) == {"a.png": "cat"}


def test_a_book_edited_by_hand_into_nonsense_names_the_line(tmp_path):
    (tmp_path / "labels.csv").write_bytes(encode_label_table({"a.png": "cat", "b.png": "cow"}))
    with pytest.raises(NPMatchError, match=r"labels.csv, line 3: unknown class 'cow'"):
        LabelBook(tmp_path, CLASSES)


def test_the_unlabelled_images_of_a_run_are_those_nobody_has_labelled(tiny_run):
    run = open_run_data(tiny_run.folder)
    found = run.unlabeled({"#0": "1"})
    labelled = set(run.split.labeled.tolist())
    expected = [i for i in range(1437) if i not in labelled and i != 0]
    assert found.positions.tolist() == expected
    assert found.names == [f"#{i}" for i in expected]
    assert torch.equal(found.images.take(torch.tensor([7])), run.dataset.train.images.take(torch.tensor([expected[7]])))
    assert run.file(3) is None
    with pytest.raises(NPMatchError, match="no such run"):
        open_run_data(tiny_run.folder / "none")
