"""A run's log: metrics.jsonl, which is the record, and TensorBoard beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npmatch.training.checkpoint import write_atomically


class Recorder:
    """Appends lines {"kind", "step", …}; after a resume the log goes on without a gap or a repeat."""

    def __init__(self, folder: Path, resume_at: int | None = None) -> None:
        """Lines after step `resume_at` are forgotten: those steps will be taken again."""
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "metrics.jsonl"
        kept = [r for r in read_records(folder) if resume_at is not None and r["step"] <= resume_at]
        write_atomically(self.path, "".join(json.dumps(r) + "\n" for r in kept).encode())
        self.file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=resume_at)  # type: ignore[no-untyped-call]
        self.seconds_before = max((r.get("seconds", 0.0) for r in kept), default=0.0)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One line, flushed."""
        self.file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self.file.flush()
        for name, value in values.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(f"{kind}/{name}", value, step)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Everything is on disk after this."""
        self.file.close()
        self.writer.close()  # type: ignore[no-untyped-call]


class Unrecorded(Recorder):
    """A log that is not kept, for training that leaves no files."""

    def __init__(self) -> None:
        """Nothing is opened."""
        self.seconds_before = 0.0

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Forgets the line."""

    def close(self) -> None:
        """Nothing to close."""


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; a last line torn by a crash is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
