"""A table that cannot be written is an error of one line, and no half-written file has its name."""

import errno

import pytest

from npmatch.errors import NPMatchError
from npmatch.predict.table import open_table

FULL = OSError(errno.ENOSPC, "No space left on device")


def fail(*_):
    raise FULL


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("moment", ["append", "close"])
def test_a_full_disk_is_one_line_and_leaves_no_table(tmp_path, monkeypatch, suffix, moment):
    path = tmp_path / f"table{suffix}"
    path.write_text("the previous table")
    table = open_table(path, {"path": "text"})
    monkeypatch.setattr(table, moment, fail)

    def write() -> None:
        with table:
            table.write([{"path": "a.png"}])

    with pytest.raises(NPMatchError, match=r"table\.\w+: cannot be written \(No space left on device\)"):
        write()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "the previous table"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_symlink_in_place_of_the_temporary_file_is_not_followed(tmp_path, ending):
    precious, table = tmp_path / "precious", tmp_path / f"table.{ending}"
    precious.write_text("untouched")
    (tmp_path / f"table.{ending}.tmp").symlink_to(precious)
    with open_table(table, {"path": "text"}) as file:
        file.write([{"path": "a.png"}])
    assert precious.read_text() == "untouched"
    assert table.is_file()
    assert not table.is_symlink()
