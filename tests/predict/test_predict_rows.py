"""Tables that cannot be written: one line, and nothing half-written under their name."""

import errno

import pytest

from npmatch.errors import NPMatchError
from npmatch.predict.rows import open_rows

FULL = OSError(errno.ENOSPC, "No space left on device")


def fail(*_):
    raise FULL


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("moment", ["append", "close"])
def test_a_full_disk_is_one_line_and_leaves_no_table(tmp_path, monkeypatch, suffix, moment):
    path = tmp_path / f"table{suffix}"
    path.write_text("the one before")
    table = open_rows(path, {"path": "text"})
    monkeypatch.setattr(table, moment, fail)

    def write() -> None:
        with table:
            table.write([{"path": "a.png"}])

    with pytest.raises(NPMatchError, match=r"table\.\w+: cannot be written \(No space left on device\)"):
        write()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "the one before"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_link_in_the_unfinished_tables_place_is_not_written_through(tmp_path, ending):
    precious, table = tmp_path / "precious", tmp_path / f"table.{ending}"
    precious.write_text("mine")
    (tmp_path / f"table.{ending}.tmp").symlink_to(precious)
    with open_rows(table, {"path": "text"}) as rows:
        rows.write([{"path": "a.png"}])
    assert precious.read_text() == "mine"
    assert table.is_file()
    assert not table.is_symlink()
