"""Files that are written atomically, and the lock of a folder."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npmatch.errors import NPMatchError
from npmatch.files import (
    final_name,
    locked,
    name_as_text,
    name_from_text,
    remove_leftovers,
    temporary_path,
    write_atomically,
)


def test_a_folder_with_braces_in_its_name_is_locked_once(tmp_path):
    folder = tmp_path / "{method}-{}"
    with locked(folder), pytest.raises(NPMatchError, match="another process is at work in this folder"), locked(folder):
        pass
    assert not folder.exists()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_every_writer_has_a_temporary_file_of_its_own_and_leftovers_are_known(tmp_path):
    first, second = temporary_path(tmp_path / "a.csv"), temporary_path(tmp_path / "a.csv")
    assert first != second
    assert final_name(first.name) == final_name("a.csv.tmp") == final_name("a.csv") == "a.csv"
    others = [tmp_path / name for name in ("a.csv", "b.csv.tmp", "a.csv.notes.tmp", "a.csv.bak")]
    for file in (first, second, *others):
        file.touch()
    remove_leftovers(tmp_path / "a.csv")
    assert sorted(tmp_path.iterdir()) == sorted(others)


@given(
    st.lists(st.sampled_from([b"\\", b"x", b"5c", b"ff", b"\xff", b"a", "é".encode()])).map(b"".join).map(os.fsdecode)
)
def test_every_file_name_is_text_and_comes_back(name):
    text = name_as_text(name)
    assert text.encode().decode() == text, "strict UTF-8"
    assert name_from_text(text) == name


def test_usual_names_are_written_as_they_are():
    for name in ("été.png", "a\\b.png", "C:\\xylophone.png", "\\x.png"):
        assert name_as_text(name) == name
    assert name_as_text(os.fsdecode(b"caf\xe9.png")) == "caf\\xe9.png"
    assert name_as_text("caf\\xe9.png") == "caf\\x5cxe9.png"
