"""Files that are written atomically, and the lock of a folder."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npmatch.errors import NPMatchError
from npmatch.files import (
    check_held,
    final_name,
    is_locked,
    locked,
    name_as_text,
    name_from_text,
    remove_leftovers,
    sees_lock,
    temporary_path,
    write_atomically,
)


def test_a_folder_with_braces_in_its_name_is_locked_once(tmp_path):
    folder = tmp_path / "{method}-{}"
    with locked(folder), pytest.raises(NPMatchError, match="another process is at work in this folder"), locked(folder):
        pass
    assert not folder.exists()


def test_a_process_whose_folder_was_taken_over_replaces_nothing(tmp_path):
    """As where a file server has given up the lock of a machine that it lost contact with."""
    (tmp_path / "run" / "inner").mkdir(parents=True)
    path = tmp_path / "run" / "inner" / "file"
    with locked(tmp_path / "run"):
        write_atomically(path, b"mine")
        for _ in range(2):
            write_atomically(path, b"mine")  # a check does not release the lock
        seen = "import sys; from pathlib import Path; from npmatch.files import *; print(is_locked(Path(sys.argv[1])))"
        asked = subprocess.run([sys.executable, "-c", seen, str(tmp_path / "run")], stdout=subprocess.PIPE, check=True)
        assert asked.stdout == b"True\n"
        (tmp_path / "run" / ".lock").write_text("process 7 on elsewhere\n")
        with pytest.raises(NPMatchError, match=r"run: was taken over by another process \(process 7 on elsewhere\)"):
            write_atomically(path, b"stale")
        with pytest.raises(NPMatchError, match="was taken over"):
            check_held(tmp_path / "run")
        write_atomically(tmp_path / "other", b"not of this folder")
    assert path.read_bytes() == b"mine"
    assert [file.name for file in path.parent.iterdir()] == ["file"]
    assert not is_locked(tmp_path / "run")


def test_a_lock_file_that_is_gone_or_empty_stops_nobody(tmp_path):
    with locked(tmp_path):
        (tmp_path / ".lock").write_text("")  # a full disk took no name
        write_atomically(tmp_path / "file", b"1")
        (tmp_path / ".lock").unlink()
        write_atomically(tmp_path / "file", b"2")


def test_an_inherited_lock_is_seen_by_others(tmp_path):
    with locked(tmp_path, inherited=True):
        assert sees_lock(tmp_path)
    assert not sees_lock(tmp_path)


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
