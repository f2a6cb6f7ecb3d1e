"""Files that are written atomically, and the lock of a folder."""

import pytest

from npmatch.errors import NPMatchError
from npmatch.files import locked, write_atomically


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
