"""Predictions of any number of files, written as they come: CSV, Parquet or JSON lines, in constant memory."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from npmatch.data.folders import walk_images
from npmatch.predict import Classifier
from npmatch.types import NoSuchChoiceError, NPMatchError

COLUMNS = ("path", "label", "confidence", "uncertainty", "probabilities")
Row = dict[str, Any]


def find_images(paths: Iterable[str | Path]) -> Iterator[Path]:
    """Files as given, and every image below the folders given, in a fixed order."""
    for path in map(Path, paths):
        if path.is_dir():
            for where, names in walk_images(path):
                yield from (Path(where, name) for name in names)
        elif path.exists():
            yield path
        else:
            raise NPMatchError(f"{path}: no such file or folder")


def predict_files(
    classifier: Classifier,
    paths: Iterable[str | Path],
    out: Path,
    batch_size: int = 128,
    advance: Callable[[int], None] = lambda n: None,
) -> tuple[int, list[str]]:
    """Writes a row per readable image to `out`; returns how many, and a line for each file that is not one."""
    written, problems = 0, []
    files = find_images(paths)
    with open_writer(out) as writer, ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        while chunk := list(islice(files, batch_size)):
            readable: list[tuple[Path, Tensor]] = []
            for path, image in zip(chunk, pool.map(_reader(classifier), chunk), strict=True):
                if isinstance(image, str):
                    problems.append(image)
                else:
                    readable.append((path, image))
            if readable:
                writer.write(_rows(classifier, readable))
            written += len(readable)
            advance(len(chunk))
    return written, problems


def _reader(classifier: Classifier) -> Callable[[Path], Tensor | str]:
    def read(path: Path) -> Tensor | str:
        try:
            return classifier.read(path)
        except NPMatchError as error:
            return str(error)

    return read


def _rows(classifier: Classifier, images: list[tuple[Path, Tensor]]) -> list[Row]:
    prediction = classifier.predict(torch.stack([image for _, image in images]), batch_size=len(images))
    values = (
        [str(path) for path, _ in images],
        [classifier.class_names[i] for i in prediction.label.tolist()],
        prediction.confidence.tolist(),
        prediction.entropy.tolist(),
        prediction.probs.tolist(),
    )
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*values, strict=True)]


class Writer(Protocol):
    """Takes rows and leaves a whole file, or, after an error, none."""

    def __enter__(self) -> Writer: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

    def write(self, rows: list[Row]) -> None:
        """Appends rows."""
        ...


class _AtomicWriter:
    """Writes beside the file and renames at the end, so that a half-written result never bears its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(path.name + ".tmp")

    def __enter__(self) -> _AtomicWriter:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.open()
        except OSError as error:
            raise NPMatchError(f"{self.path}: cannot be written ({error.strerror})") from error
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()
        if kind is None:
            os.replace(self.temporary, self.path)
        else:
            self.temporary.unlink(missing_ok=True)

    def open(self) -> None:
        raise NotImplementedError

    def write(self, rows: list[Row]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class _TextWriter(_AtomicWriter):
    def open(self) -> None:
        self.file = open(self.temporary, "w", newline="", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115

    def close(self) -> None:
        self.file.close()


class CsvWriter(_TextWriter):
    """Comma-separated, probabilities as a JSON list in the order of the class names."""

    def open(self) -> None:
        """Writes the header."""
        super().open()
        self.csv = csv.DictWriter(self.file, COLUMNS)
        self.csv.writeheader()

    def write(self, rows: list[Row]) -> None:
        """Appends rows."""
        self.csv.writerows({**row, "probabilities": json.dumps(row["probabilities"])} for row in rows)


class JsonLinesWriter(_TextWriter):
    """One JSON object per line."""

    def write(self, rows: list[Row]) -> None:
        """Appends rows."""
        self.file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


class ParquetWriter(_AtomicWriter):
    """Parquet, a row group per batch."""

    def open(self) -> None:
        """Fixes the schema, so that an empty result is a valid file too."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        number, text = pa.float32(), pa.string()
        types = (text, text, number, number, pa.list_(number))
        self.schema = pa.schema(list(zip(COLUMNS, types, strict=True)))
        self.parquet = pq.ParquetWriter(self.temporary, self.schema)

    def write(self, rows: list[Row]) -> None:
        """Appends a row group."""
        import pyarrow as pa

        self.parquet.write_table(pa.Table.from_pylist(rows, schema=self.schema))

    def close(self) -> None:
        """Writes the footer."""
        self.parquet.close()


WRITERS: dict[str, type[CsvWriter] | type[JsonLinesWriter] | type[ParquetWriter]] = {
    ".csv": CsvWriter,
    ".jsonl": JsonLinesWriter,
    ".parquet": ParquetWriter,
}


def open_writer(path: Path) -> CsvWriter | JsonLinesWriter | ParquetWriter:
    """The writer for a file's ending."""
    if path.suffix not in WRITERS:
        raise NoSuchChoiceError("output format", path.suffix or str(path), list(WRITERS))
    return WRITERS[path.suffix](path)
