"""Walks through folders: the same as os.walk's, and further."""

import os
from pathlib import Path

import pytest

from npmatch.data.sources.walk import names_in, walk
from npmatch.errors import NPMatchError


def test_a_walk_is_that_of_the_standard_library(tmp_path):
    for name in ("b/1", "b/2/x", "a", ".git/y", "c/.cache", "a-b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (tmp_path / "a" / "circle").symlink_to(tmp_path)
    (tmp_path / "a" / "dangling").symlink_to(tmp_path / "nowhere")
    for hidden in (True, False):
        expected = []
        for where, folders, files in os.walk(tmp_path):
            expected.append((where, sorted(folders), sorted(files), ""))
            folders[:] = sorted(name for name in folders if hidden or not name.startswith("."))
        assert list(map(tuple, walk(tmp_path, hidden))) == expected


def test_folders_may_be_deeper_than_python_recurses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    Path("file").touch()
    os.chdir(tmp_path)
    *_, last = walk(tmp_path)
    assert last.files == ["file"]
    assert last.path.count("/d") >= 1500
    remove_deep(tmp_path / "d")


def remove_deep(folder):
    """Removes a folder that is too deep for shutil.rmtree."""
    for inside in reversed(list(walk(folder))):
        for name in inside.files:
            os.unlink(os.path.join(inside.path, name))
        os.rmdir(inside.path)


def test_a_folder_that_can_be_listed_but_not_entered_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "x.png").touch()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "listed" and access(path, mode))
    assert list(walk(tmp_path))[1] == (str(tmp_path / "listed"), [], [], "Permission denied")
    with pytest.raises(NPMatchError, match="Permission denied"):
        names_in(tmp_path / "listed")


def test_a_folder_that_cannot_be_read_is_told(tmp_path, forbid):
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").mkdir()
    forbid(tmp_path / "closed")
    assert [(Path(inside.path).name, inside.problem) for inside in walk(tmp_path)][1:] == [
        ("closed", "Permission denied"),
        ("open", ""),
    ]
    with pytest.raises(NPMatchError, match=r"closed: a folder that cannot be read \(Permission denied\); change its"):
        names_in(tmp_path / "closed")
