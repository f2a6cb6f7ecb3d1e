"""The result of a benchmark: rows of a table, the ratios that are its claim, and where it was measured."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


class Column(NamedTuple):
    """A key of the rows, its heading, and how a value is printed."""

    key: str
    heading: str
    form: str = "{}"  # for str.format


@dataclass
class BenchmarkResult:
    """What a benchmark measured in one run."""

    name: str  # of its module: `python -m benchmarks.NAME`
    about: str  # one line: what was measured, of what size
    columns: list[Column]
    rows: list[dict[str, Any]]
    ratios: dict[str, float] = field(default_factory=dict)  # "one step: eager fp32 / ours" → 10.2
    notes: list[str] = field(default_factory=list)  # what a reader must know to take the figures rightly
    device: str = "cpu"

    def shown(self) -> list[Column]:
        """The columns that have a value in some row; on a CPU, for example, no GPU memory is measured."""
        return [c for c in self.columns if any(row.get(c.key) is not None for row in self.rows)]

    def cells(self) -> list[list[str]]:
        """The text of the table, row by row; empty where a row has no such value."""
        shown = self.shown()
        return [["" if row.get(c.key) is None else c.form.format(row[c.key]) for c in shown] for row in self.rows]

    def asdict(self) -> dict[str, Any]:
        """The object that --json prints."""
        return {
            "bench": self.name,
            "about": self.about,
            "device": device_name(self.device),
            "rows": self.rows,
            "ratios": self.ratios,
            "notes": self.notes,
        }


def device_name(device: str) -> str:
    """The device or the number of cores in words, and the version of torch."""
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{os.cpu_count()} {platform.machine()} cores, torch {torch.__version__}"
