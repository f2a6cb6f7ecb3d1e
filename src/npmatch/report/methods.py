"""Several methods over several seeds, gathered by the caller; nothing here reads a file or runs a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from npmatch.metrics import ClassRow, Reliability
from npmatch.report.record import Series
from npmatch.training.log import number

BASELINE, OURS = "supervised", "npmatch"  # the methods every figure keeps in sight
NUMBERS = ("error", "top5_error", "nll", "ece", "uce", "brier", "trusted", "pseudo_accuracy", "seconds")
DECIDED = ("temperature", "ece", "calibrated_ece", "uce", "calibrated_uce", "kept", "kept_error")
TARGET = 0.05  # the error rate among kept predictions that `kept` and `kept_error` are of
WITH_SPREAD = ("error", "top5_error", "nll", "ece", "uce", "brier")


@dataclass(frozen=True)
class Outcome:
    """One finished run: numbers, and what the figures are drawn from; a whole test set would be too much to keep."""

    seed: int
    numbers: dict[str, float]  # of NUMBERS, those that are known
    curve: Series  # steps, test error in %
    classes: list[ClassRow] = field(default_factory=list)
    confidence: Reliability | None = None
    uncertainty: Reliability | None = None
    decided: dict[str, float] = field(default_factory=dict)  # by held-out labels; of DECIDED, those that are known


@dataclass(frozen=True)
class Method:
    """All runs of one method."""

    name: str
    outcomes: list[Outcome]
    problems: dict[int, str] = field(default_factory=dict)  # seed → why its run did not finish
    paper: tuple[float, float | None] | None = None  # the published error, %, and its deviation
    iterations: int | None = None

    def values(self, key: str) -> list[float]:
        """One number of every finished run that has it."""
        return [value for run in self.outcomes if (value := number(run.numbers.get(key))) is not None]

    def mean_decided(self, key: str) -> float | None:
        """One number of DECIDED, over the seeds that have it."""
        values = [run.decided[key] for run in self.outcomes if key in run.decided]
        return float(np.mean(values)) if values else None

    def mean(self, key: str) -> float | None:
        """Over seeds; None where no run has the number."""
        values = self.values(key)
        return float(np.mean(values)) if values else None

    def spread(self, key: str) -> float | None:
        """The sample standard deviation over seeds; None below two of them."""
        values = self.values(key)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def curve(self) -> tuple[Series, npt.NDArray[np.float64]]:
        """(steps, mean error), and the deviation over seeds, at the steps that every seed was evaluated at."""
        curves = [dict(zip(*run.curve, strict=True)) for run in self.outcomes if len(run.curve[0])]
        steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
        errors = np.array([[curve[step] for step in steps] for curve in curves]).reshape(len(curves), len(steps))
        if not steps:
            return (np.zeros(0), np.zeros(0)), np.zeros(0)
        deviation = errors.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(steps))
        return (np.array(steps, dtype=np.float64), errors.mean(axis=0)), deviation

    def classes(self) -> list[ClassRow]:
        """Accuracy and uncertainty of each class, averaged over seeds."""
        runs = [run.classes for run in self.outcomes if run.classes]
        return [
            ClassRow(
                same[0].name,
                same[0].n,
                float(np.mean([row.accuracy for row in same])),
                float(np.mean([row.uncertainty for row in same])),
            )
            for same in zip(*runs, strict=True)
        ]


@dataclass(frozen=True)
class Comparison:
    """What the page of many runs shows."""

    title: str
    methods: list[Method]
    settings: dict[str, object] = field(default_factory=dict)
    swept: str | None = None  # the key whose values the methods' names are
    apart: dict[str, list[object]] = field(default_factory=dict)  # key → the value of each method

    @property
    def heading(self) -> str:
        """What the rows of its tables are."""
        return self.swept or "Method"

    def baseline_error(self) -> float | None:
        """The mean error of training on the labels alone, where that was among the methods."""
        found = [method.mean("error") for method in self.methods if method.name == BASELINE]
        return found[0] if found else None

    def note(self, method: Method) -> str:
        """What a reader must know of a method's numbers; usually nothing."""
        reasons = [f"seed {seed} failed: {why}" for seed, why in sorted(method.problems.items())]
        if len(set(method.problems.values())) == 1 and not method.outcomes:
            reasons = [f"failed: {next(iter(method.problems.values()))}"]
        error, baseline = method.mean("error"), self.baseline_error()
        if error is not None and baseline is not None and method.name != BASELINE and error >= baseline:
            reasons.append(f"did not beat {BASELINE}")
        if method.outcomes and error is None:
            reasons.append("no test images to measure it on")
        return "; ".join(reasons)

    def rows(self) -> list[dict[str, Any]]:
        """One row per method: means and deviations over seeds; None where there is no number."""
        return [self._row(method) for method in self.methods]

    def _row(self, method: Method) -> dict[str, Any]:
        row: dict[str, Any] = {"method": method.name, "seeds": len(method.outcomes), "failed": len(method.problems)}
        for key in NUMBERS:
            row[key] = method.mean(key)
            if key in WITH_SPREAD:
                row[f"{key}_std"] = method.spread(key)
        row["paper_error"], row["paper_error_std"] = method.paper or (None, None)
        return {**row, "iterations": method.iterations, "note": self.note(method)}


def pooled(bins: Sequence[Reliability]) -> Reliability | None:
    """The bins of several runs as those of all their images together."""
    if not bins:
        return None
    counts = torch.stack([b.count for b in bins])
    count = counts.sum(0)

    def average(values: list[Tensor]) -> Tensor:
        return (torch.stack(values) * counts).nan_to_num(0.0).sum(0) / count

    return Reliability(bins[0].edges, count, average([b.score for b in bins]), average([b.outcome for b in bins]))


def numeric(names: Sequence[str]) -> list[float] | None:
    """The names as numbers, where all of them are finite ones."""
    try:
        values = [float(name) for name in names]
    except ValueError:
        return None
    return values if all(math.isfinite(value) for value in values) else None
