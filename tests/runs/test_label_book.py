"""The label book: every change is on disk, errors come before anything is written, and other writers are respected."""

import errno
import fcntl
import multiprocessing
import os
import signal
import threading

import pytest
import torch

from npmatch.data.labels import LabelRow, encode_label_table
from npmatch.errors import NPMatchError
from npmatch.runs.label_book import LabelBook, LabelsNotSavedError
from npmatch.runs.open import open_run_data

CLASSES = ("cat", "dog")


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


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
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".labels.csv.lock",
        "labels.backup.csv",
        "labels.csv",
    ]


def test_what_another_process_wrote_meanwhile_is_kept(tmp_path):
    page, command = LabelBook(tmp_path, CLASSES), LabelBook(tmp_path, CLASSES)
    page.set("a.png", "cat")
    command.set("b.png", "dog")
    page.set("c.png", "cat")
    assert page.labels == command.labels == {"a.png": "cat", "b.png": "dog", "c.png": "cat"}
    page.remove("c.png")
    assert on_disk(tmp_path) == {"a.png": "cat", "b.png": "dog"}


def give_labels(folder, writer, count, start):
    book = LabelBook(folder, CLASSES)
    start.wait()
    for i in range(count):
        book.set(f"{writer}-{i}.png", CLASSES[i % 2])


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_writers_at_the_same_time_lose_no_label(tmp_path, kind):
    context = multiprocessing.get_context("fork")
    make, barrier = (context.Process, context.Barrier) if kind == "processes" else (threading.Thread, threading.Barrier)
    start = barrier(3)
    writers = [make(target=give_labels, args=(tmp_path, writer, 40, start)) for writer in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert on_disk(tmp_path) == {f"{w}-{i}.png": CLASSES[i % 2] for w in range(3) for i in range(40)}


def test_what_is_read_in_an_exclusive_book_is_true_when_it_is_changed(tmp_path):
    page, command = LabelBook(tmp_path, CLASSES), LabelBook(tmp_path, CLASSES)
    with page.exclusive():
        other = threading.Thread(target=command.set, args=("a.png", "dog"))
        other.start()
        other.join(0.2)
        assert page.labels == {}
        page.set("a.png", "cat")
        assert page.labels == {"a.png": "cat"}
    other.join()
    assert page.labels == {"a.png": "dog"}


def test_a_writer_that_was_stopped_holds_up_nobody_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr("npmatch.files.LOCK_SECONDS", 0.1)
    book = LabelBook(tmp_path, CLASSES)
    book.set("a.png", "cat")
    with open(tmp_path / ".labels.csv.lock") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(NPMatchError, match=r"\.labels\.csv\.lock: held by another process for 0\.1 sec"):
            book.set("b.png", "cat")
        assert book.labels == {"a.png": "cat"}
    book.set("b.png", "cat")
    assert on_disk(tmp_path) == {"a.png": "cat", "b.png": "cat"}


def test_a_writer_killed_in_the_middle_leaves_neither_a_lock_nor_a_file(tmp_path):
    LabelBook(tmp_path, CLASSES).set("a.png", "cat")
    child = os.fork()
    if not child:
        try:
            os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            LabelBook(tmp_path, CLASSES).set("b.png", "dog")
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert len(list(tmp_path.glob("*.tmp"))) == 1
    LabelBook(tmp_path, CLASSES).set("c.png", "dog")
    assert on_disk(tmp_path) == {"a.png": "cat", "c.png": "dog"}
    assert not list(tmp_path.glob("*.tmp"))


def test_a_label_that_could_not_be_saved_does_not_count(tmp_path, monkeypatch):
    book = LabelBook(tmp_path, CLASSES)
    book.set("a.png", "cat")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        for change, *words in ((book.set, "b.png", "dog"), (book.set, "a.png", "dog"), (book.remove, "a.png")):
            with pytest.raises(LabelsNotSavedError, match=r"labels.csv: cannot be written \(No space left on device\)"):
                change(*words)
            assert book.labels == on_disk(tmp_path) == {"a.png": "cat"}
    book.set("b.png", "dog")
    assert book.labels == on_disk(tmp_path) == {"a.png": "cat", "b.png": "dog"}


def test_a_book_that_is_a_link_stays_one_and_is_shared(tmp_path):
    runs = [tmp_path / "a", tmp_path / "b"]
    shared = tmp_path / "shared" / "cats.csv"
    shared.parent.mkdir()
    shared.write_bytes(encode_label_table({"a.png": "cat"}))
    for run in runs:
        run.mkdir()
        (run / "labels.csv").symlink_to(shared)
    start = threading.Barrier(2)
    writers = [threading.Thread(target=give_labels, args=(run, run.name, 20, start)) for run in runs]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all((run / "labels.csv").is_symlink() and os.listdir(run) == ["labels.csv"] for run in runs)
    assert sorted(os.listdir(shared.parent)) == [".cats.csv.lock", "cats.backup.csv", "cats.csv"]
    assert len(on_disk(runs[0])) == 41
    assert shared.read_bytes() == encode_label_table(on_disk(runs[1]))


def test_a_link_to_nothing_creates_nothing(tmp_path):
    (tmp_path / "labels.csv").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NPMatchError, match=r"labels.csv: links to .*elsewhere, which does not exist"):
        LabelBook(tmp_path, CLASSES).set("a.png", "cat")
    assert not (tmp_path / "elsewhere").exists()


def test_a_pipe_or_a_circle_of_links_in_place_of_the_book_is_one_line(tmp_path):
    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(NPMatchError, match=r"labels.csv: not a regular file"):
        LabelBook(tmp_path, CLASSES)
    (tmp_path / "labels.csv").unlink()
    (tmp_path / "labels.csv").symlink_to(tmp_path / "labels.csv")
    with pytest.raises(NPMatchError, match=r"labels.csv: cannot be read \(Too many levels"):
        LabelBook(tmp_path, CLASSES)


DAMAGE = {
    "empty": lambda content: b"",
    "no table": lambda content: b"\0" * len(content),
    "zeros at the end": lambda content: content[:-12] + b"\0" * 12,
    "cut in a row": lambda content: content[:-5],
    "cut in the first line": lambda content: content[:5],
    "an open quote": lambda content: content.replace(b"b.png", b'"b.png'),
    "another encoding": lambda content: content.decode().encode("utf-16"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_book_is_told_and_restored(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("npmatch.runs.label_file.SETTLE_SECONDS", 0.0)
    good = {"a.png": "cat", "b.png": "dog", "c.png": "cat"}
    book, told = LabelBook(tmp_path, CLASSES), []
    for name, label in good.items():
        book.set(name, label)
    damaged = DAMAGE[kind](book.path.read_bytes())
    book.path.write_bytes(damaged)
    again = LabelBook(tmp_path, CLASSES, warn=told.append)
    assert again.labels == on_disk(tmp_path) == good
    assert [again.restored] == told
    assert told[0].endswith(
        "restored from labels.backup.csv (number of labels: 3), and the damaged file is kept as damaged-labels.csv"
    )
    assert (tmp_path / "damaged-labels.csv").read_bytes() == damaged
    book.path.write_bytes(damaged)
    book.set("d.png", "dog")
    assert on_disk(tmp_path) == {**good, "d.png": "dog"}
    assert (tmp_path / "damaged-2-labels.csv").exists()


def test_a_book_that_an_editor_is_saving_is_not_restored(tmp_path, monkeypatch):
    monkeypatch.setattr("npmatch.runs.label_file.SETTLE_SECONDS", 0.4)
    book = LabelBook(tmp_path, CLASSES)
    book.set("a.png", "cat")
    book.path.write_bytes(b"path,la")
    saved = threading.Timer(0.2, book.path.write_bytes, [encode_label_table({"a.png": "dog", "b.png": "dog"})])
    saved.start()
    assert book.labels == {"a.png": "dog", "b.png": "dog"}
    assert not list(tmp_path.glob("damaged-*"))


def test_rows_that_a_person_has_removed_or_mistyped_are_not_restored(tmp_path):
    book = LabelBook(tmp_path, CLASSES)
    for name in ("a.png", "b.png"):
        book.set(name, "cat")
    book.path.write_bytes(encode_label_table({"a.png": "cat"}))
    assert book.labels == {"a.png": "cat"}
    book.path.write_bytes(encode_label_table({"a.png": "catt"}))
    with pytest.raises(NPMatchError, match="unknown class 'catt'"):
        _ = book.labels
    book.path.unlink()
    assert book.labels == {}
    book.set("c.png", "dog")
    assert on_disk(tmp_path) == {"c.png": "dog"}
    assert (tmp_path / "removed-labels.csv").read_bytes() == encode_label_table({"a.png": "cat", "b.png": "cat"})


def test_a_damaged_book_that_cannot_be_restored_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr("npmatch.runs.label_file.SETTLE_SECONDS", 0.0)
    book = LabelBook(tmp_path, CLASSES)
    book.set("a.png", "cat")
    book.path.write_bytes(b"nonsense")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(NPMatchError, match=r"cannot be restored from labels.backup.csv \(No space left"):
            LabelBook(tmp_path, CLASSES)
    assert book.path.read_bytes() == b"nonsense"
    (tmp_path / "labels.backup.csv").unlink()
    with pytest.raises(NPMatchError, match=r"labels.csv: the first line names .*there is no labels.backup.csv"):
        LabelBook(tmp_path, CLASSES)


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    (tmp_path / ".labels.csv.lock").symlink_to(precious)
    LabelBook(tmp_path, CLASSES).set("a.png", "cat")
    assert not precious.exists()


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
