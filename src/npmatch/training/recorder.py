"""A run's log: metrics.jsonl, which is the record, and TensorBoard beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npmatch.files import write_atomically
from npmatch.training.tensorboard import ScalarFile
from npmatch.types import NPMatchError


class Recorder:
    """Appends lines {"kind", "step", …}; after a resume the log goes on without a gap or a repeat."""

    def __init__(self, folder: Path, resume_at: int | None = None) -> None:
        """Lines after step `resume_at` are forgotten, and the final one: those steps will be taken again."""
        self.path = folder / "metrics.jsonl"
        kept = [r for r in read_records(folder) if resume_at is not None and r["step"] <= resume_at]
        kept = [r for r in kept if r["kind"] != "final"]
        write_atomically(self.path, "".join(json.dumps(r) + "\n" for r in kept).encode())
        self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self.whole = self.path.stat().st_size  # bytes of lines that are whole
        self.waiting = b""  # lines that could not be written yet
        self.lines = len(kept)
        self.curves = ScalarFile(folder / "tensorboard", purge_step=resume_at or 0)
        self.seconds_before = max((r.get("seconds", 0.0) for r in kept), default=0.0)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One line; where the disk refuses it, an OSError, and the line is written together with the next one."""
        self.waiting += (json.dumps({"kind": kind, "step": step, **values}) + "\n").encode()
        self.lines += 1
        self._write_waiting()
        for name, value in values.items():
            if isinstance(value, int | float):
                self.curves.add(f"{kind}/{name}", value, step)

    def _write_waiting(self) -> None:
        try:
            written = 0
            while written < len(self.waiting):  # a disk that is nearly full takes a part
                written += self.file.write(self.waiting[written:]) or 0
        except OSError:
            self.file.truncate(self.whole)  # half a line would be in the way of the next one
            raise
        self.whole += len(self.waiting)
        self.waiting = b""

    def sync(self) -> None:
        """The log is on disk after this: a checkpoint must not be newer than the lines before it."""
        self._write_waiting()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Everything is on disk after this."""
        try:
            self.sync()
        finally:
            self.file.close()
            self.curves.close()


class Unrecorded(Recorder):
    """A log that is not kept, for training that leaves no files."""

    def __init__(self) -> None:
        """Nothing is opened."""
        self.seconds_before = 0.0
        self.lines = 0

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Forgets the line."""

    def sync(self) -> None:
        """Nothing to keep."""

    def close(self) -> None:
        """Nothing to close."""


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; an end torn by a crash is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise NPMatchError(f"{path}: cannot be read ({error.strerror})") from error
    records = [_parse(line) for line in lines if line]
    while records and records[-1] is None:
        records.pop()
    whole = [record for record in records if record is not None]
    if len(whole) < len(records):
        line = records.index(None) + 1
        raise NPMatchError(f"{path}, line {line}: not a record; the file was altered, restore or remove the line")
    return whole


def last_record(records: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """The newest line of a kind: train, eval or final, which a finished run has."""
    return next((record for record in reversed(records) if record["kind"] == kind), None)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    types = {"kind": str, "step": int, "seconds": int | float}
    fits = isinstance(record, dict) and all(isinstance(record.get(key, 0.0), types[key]) for key in types)
    return record if fits else None
