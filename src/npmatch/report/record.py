"""Everything a report is made of, gathered by the caller; nothing here reads a file or runs a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from npmatch.decide import Calibration
from npmatch.training.log import number
from npmatch.types import Prediction

Series = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # steps, values: of one length


@dataclass
class RunRecord:
    """One run: its settings, the lines of its metrics.jsonl, and what its final model says of a test set."""

    title: str
    config: dict[str, Any]  # nested
    records: list[dict[str, Any]]  # kind: train | eval | final; any key but kind and step may be missing
    class_names: Sequence[str]  # K
    prediction: Prediction  # of the N test images
    y: Tensor  # N, int64
    gallery: dict[int, Tensor] = field(default_factory=dict)  # test index → uint8 C H W
    comparison: list[dict[str, Any]] = field(default_factory=list)  # name, error, ece, uce, seconds
    notes: list[str] = field(default_factory=list)
    num_labeled: int | None = None  # labels the run learned from
    calibration: Calibration | None = None  # fitted on labels that are not among the test images

    def series(self, kind: str, key: str) -> Series:
        """One logged quantity against the step; lines without a finite number are left out."""
        points = [
            (number(line.get("step")), number(line.get(key))) for line in self.records if line.get("kind") == kind
        ]
        kept = [(step, value) for step, value in points if step is not None and value is not None]
        table = np.array(sorted(kept), dtype=np.float64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def keys(self, kind: str, prefix: str) -> list[str]:
        """The logged quantities whose names begin with `prefix`, in order of appearance."""
        lines = [line for line in self.records if line.get("kind") == kind]
        return list(dict.fromkeys(key for line in lines for key in line if key.startswith(prefix)))

    def last(self, kind: str, key: str) -> float | None:
        """The latest finite value of one logged quantity."""
        _, values = self.series(kind, key)
        return float(values[-1]) if len(values) else None
