"""The result of a benchmark: rows of its tables, the ratios that are its claim, and where it was measured."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from npmatch.files import write_atomically

OUTPUTS = (".md", ".json", ".jsonl")  # endings of the files that `write` writes


class Column(NamedTuple):
    """A key of the rows, its heading, and how a value is printed; a row may have its spread under KEY_std."""

    key: str
    heading: str
    form: str = "{}"  # for str.format
    table: str = ""  # title of the table that it is in; without one it is in every table

    def cell(self, row: dict[str, Any]) -> str:
        """The text of a row in this column; empty where the row has no such value."""
        value, spread = row.get(self.key), row.get(f"{self.key}_std")
        text = "" if value is None else self.form.format(value)
        return text if spread is None else f"{text} ± {self.form.format(spread)}"


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
    runs: list[dict[str, Any]] = field(default_factory=list)  # the single trainings that the rows summarise

    def shown(self) -> list[Column]:
        """The columns that have a value in some row; on a CPU, for example, no GPU memory is measured."""
        return [c for c in self.columns if any(row.get(c.key) is not None for row in self.rows)]

    def tables(self) -> dict[str, list[Column]]:
        """Title → columns; one table with the whole of the result, unless columns name tables of their own."""
        shown = self.shown()
        titles = dict.fromkeys(column.table for column in shown if column.table) or {self.about: None}
        return {title: [column for column in shown if column.table in ("", title)] for title in titles}

    def cells(self, columns: list[Column] | None = None) -> list[list[str]]:
        """The text of a table, by default of all columns, row by row."""
        shown = self.shown() if columns is None else columns
        return [[column.cell(row) for column in shown] for row in self.rows]

    def markdown(self) -> str:
        """The tables and notes for a page of the documentation."""
        parts = [f"{self.about}; {device_name(self.device)}."]
        for title, columns in self.tables().items():
            lines = [[column.heading for column in columns], ["---"] * len(columns), *self.cells(columns)]
            table = "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)
            parts += [table] if title == self.about else [f"{title}:", table]
        return "\n\n".join([*parts, *self.notes]) + "\n"

    def write(self, path: Path) -> None:
        """Writes the tables as Markdown, the whole result as JSON, or a line of JSON for each training."""
        if path.suffix == ".md":
            text = self.markdown()
        else:
            parts = self.runs if path.suffix == ".jsonl" else [self.asdict()]
            text = "".join(json.dumps(part, ensure_ascii=False) + "\n" for part in parts)
        write_atomically(path, text.encode())

    def asdict(self) -> dict[str, Any]:
        """The object that --json prints."""
        return {
            "bench": self.name,
            "about": self.about,
            "device": device_name(self.device),
            "rows": self.rows,
            "ratios": self.ratios,
            "notes": self.notes,
            **({"runs": self.runs} if self.runs else {}),
        }


def device_name(device: str) -> str:
    """The device or the number of cores in words, and the version of torch."""
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{os.cpu_count()} {platform.machine()} cores, torch {torch.__version__}"
