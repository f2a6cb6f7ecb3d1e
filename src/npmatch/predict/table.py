"""Tables written row by row in constant memory: CSV, Parquet or JSON Lines."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal

from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.files import name_as_text, open_new, temporary_path

Kind = Literal["path", "text", "number", "flag", "texts", "numbers"]
Columns = Mapping[str, Kind]  # column name → kind of its cells, in the order of the file
Row = dict[str, Any]  # column name → cell


class TableFile:
    """A context manager that writes a temporary file and renames it at the end, so that no partial table is left."""

    def __init__(self, path: Path, columns: Columns) -> None:
        """The file is created on entering `with`."""
        self.path = path
        self.columns = columns
        self.temporary = temporary_path(path)

    def __enter__(self) -> TableFile:
        """Opens the temporary file."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.open()
        except OSError as error:
            raise self.unwritable(error) from error
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Renames the complete file; deletes it after an error."""
        try:
            self.close()
            if kind is None:
                os.replace(self.temporary, self.path)
        except OSError as problem:
            kind = OSError
            raise self.unwritable(problem) from problem
        finally:
            if kind is not None:
                self.temporary.unlink(missing_ok=True)

    def write(self, rows: list[Row]) -> None:
        """Appends rows; every reader of UTF-8 can read them, whatever bytes the paths contain."""
        paths = [name for name, kind in self.columns.items() if kind == "path"]
        try:
            self.append([{**row, **{name: name_as_text(row[name]) for name in paths}} for row in rows])
        except OSError as error:
            raise self.unwritable(error) from error

    def unwritable(self, error: OSError) -> NPMatchError:
        """The error to raise if the disk refuses to write."""
        return NPMatchError(f"{self.path}: cannot be written ({error.strerror or error})")

    def open(self) -> None:
        """Opens the temporary file; each format has its own way."""
        raise NotImplementedError

    def append(self, rows: list[Row]) -> None:
        """Writes rows in this format."""
        raise NotImplementedError

    def close(self) -> None:
        """Completes and closes the temporary file."""
        raise NotImplementedError


class _TextFile(TableFile):
    def open(self) -> None:
        self.file = TextIOWrapper(open_new(self.temporary), "utf-8", newline="")

    def close(self) -> None:
        self.file.close()


class CsvFile(_TextFile):
    """Comma-separated values; lists are JSON, flags are true and false."""

    def open(self) -> None:
        """Opens the file and writes the header."""
        super().open()
        self.csv = csv.DictWriter(self.file, list(self.columns))
        self.csv.writeheader()

    def append(self, rows: list[Row]) -> None:
        """Appends rows."""
        as_json = [name for name, kind in self.columns.items() if kind in ("texts", "numbers", "flag")]
        self.csv.writerows(
            {**row, **{name: json.dumps(row[name], ensure_ascii=False) for name in as_json}} for row in rows
        )


class JsonLinesFile(_TextFile):
    """One JSON object per line."""

    def append(self, rows: list[Row]) -> None:
        """Appends rows."""
        self.file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


class ParquetFile(TableFile):
    """Parquet with one row group per call of `write`."""

    def open(self) -> None:
        """Opens the file with a schema, so that an empty table is a valid file too."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {"path": pa.string(), "text": pa.string(), "number": pa.float32(), "flag": pa.bool_()}
        types |= {f"{kind}s": pa.list_(types[kind]) for kind in ("text", "number")}
        self.schema = pa.schema([(name, types[kind]) for name, kind in self.columns.items()])
        self.file = open_new(self.temporary)
        self.parquet = pq.ParquetWriter(self.file, self.schema)

    def append(self, rows: list[Row]) -> None:
        """Appends a row group."""
        import pyarrow as pa

        self.parquet.write_table(pa.Table.from_pylist(rows, schema=self.schema))

    def close(self) -> None:
        """Writes the footer."""
        with self.file:
            self.parquet.close()


FORMATS: dict[str, type[CsvFile] | type[JsonLinesFile] | type[ParquetFile]] = {
    ".csv": CsvFile,
    ".jsonl": JsonLinesFile,
    ".parquet": ParquetFile,
}


def column_names(path: Path) -> list[str]:
    """The columns of an existing table, in the format that the path's suffix names; none if it cannot be read."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            return list(pq.read_schema(path).names)
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            first = file.readline(2**20)
        return list(json.loads(first)) if path.suffix == ".jsonl" else next(csv.reader([first]))
    except (OSError, ValueError, RecursionError, TypeError, StopIteration, csv.Error):  # pyarrow's are ValueErrors
        return []


def open_table(path: Path, columns: Columns) -> TableFile:
    """A table in the format that the path's suffix names."""
    if path.suffix not in FORMATS:
        raise NoSuchChoiceError("output format", path.suffix or str(path), list(FORMATS))
    return FORMATS[path.suffix](path, columns)
