"""The data of a page, gathered by the caller; nothing here reads a file or runs a model.

A page shows a `Comparison`: methods, and for each method the outcomes of its runs. The page of a single run is a
comparison of one method and one seed that also carries the run's `RunRecord`, for the sections that need all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from npmatch.baselines import BASELINES
from npmatch.decide import Calibration, fewest_labels
from npmatch.metrics import ClassRow, Reliability, Scores, classwise, reliability_bins, scores, uncertainty_bins
from npmatch.report.audited import AuditedError, EstimatedError
from npmatch.report.probe import Probe, read_probe
from npmatch.training.log import last_record, number
from npmatch.types import Prediction

Series = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # steps, values: of one length

BASELINE, OURS = "supervised", "npmatch"  # the methods that every figure highlights
WITH_SPREAD = ("error", "balanced_error", "geometric_accuracy", "top5_error", "nll", "ece", "uce", "brier")
NUMBERS = (*WITH_SPREAD, "outlier_auroc", "class_ratio", "trusted", "pseudo_accuracy", "seconds")
DECIDED = ("temperature", "ece", "calibrated_ece", "uce", "calibrated_uce", "kept", "kept_error")
TARGET = 0.05  # target error rate of the abstention that `kept` and `kept_error` describe


def _no_prediction() -> Prediction:
    return Prediction(torch.zeros(0, 0), torch.zeros(0))


def _no_series() -> Series:
    return np.zeros(0), np.zeros(0)


@dataclass
class RunRecord:
    """One run in full: its log and its predictions of N test images; N is 0 until these exist."""

    records: list[dict[str, Any]]  # lines of metrics.jsonl; any key but kind and step may be missing
    prediction: Prediction = field(default_factory=_no_prediction)
    y: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # N
    class_names: Sequence[str] = ()  # K
    calibration: Calibration | None = None  # fitted on labels that are not among the test images
    gallery: Mapping[int, Tensor] = field(default_factory=dict)  # test index → uint8 C H W
    num_labeled: int | None = None  # number of labels the run was trained on
    audited: Sequence[AuditedError] = ()  # what audits have measured on unlabelled images
    estimated: EstimatedError | None = None  # of a run that has no test images
    forecast: Mapping[str, Any] | None = None  # of the error with more labels, as `npmatch forecast` wrote it

    def __post_init__(self) -> None:
        """Moves the predictions to the CPU, where figures are drawn."""
        self.prediction, self.y = self.prediction.to("cpu"), self.y.cpu()

    def series(self, kind: str, key: str) -> Series:
        """The steps and values of one logged quantity; lines without a finite number are left out."""
        points = [
            (number(line.get("step")), number(line.get(key))) for line in self.records if line.get("kind") == kind
        ]
        kept = [(step, value) for step, value in points if step is not None and value is not None]
        table = np.array(sorted(kept), dtype=np.float64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def keys(self, kind: str, prefix: str) -> list[str]:
        """Names of the logged quantities that begin with `prefix`, in order of appearance."""
        lines = [line for line in self.records if line.get("kind") == kind]
        return list(dict.fromkeys(key for line in lines for key in line if key.startswith(prefix)))

    def last(self, kind: str, key: str) -> float | None:
        """The latest finite value of one logged quantity."""
        _, values = self.series(kind, key)
        return float(values[-1]) if len(values) else None

    @cached_property
    def scores(self) -> Scores:
        """Error and calibration on the test images; fails if the numbers of predictions and labels differ."""
        return scores(self.prediction, self.y)

    def probe(self) -> Probe | None:
        """The linear probe on the features that the run started from; None for a run from random weights."""
        return read_probe(last_record(self.records, "final") or {})

    def classes(self) -> list[ClassRow]:
        """Accuracy and uncertainty of each class."""
        return classwise(self.prediction, self.y, self.class_names)

    def confidence(self) -> Reliability:
        """Accuracy by bins of the confidence."""
        return reliability_bins(self.prediction.probs, self.y)

    def uncertainty(self) -> Reliability:
        """Error by bins of the uncertainty, as a share of its maximum log K."""
        prediction = self.prediction
        return uncertainty_bins(prediction.entropy, prediction.label != self.y, prediction.probs.shape[1])

    def calibrated(self) -> RunRecord | None:
        """The same run at the fitted temperature; None where none was fitted."""
        if self.calibration is None or self.calibration.temperature is None:
            return None
        return replace(self, prediction=self.calibration.apply(self.prediction))

    def outcome(self, seed: int) -> Outcome:
        """The summary that a comparison keeps of the run."""
        last, final = last_record(self.records, "train") or {}, last_record(self.records, "final")
        if final is None:  # the log is incomplete, but the predictions exist
            final = self.scores.asdict() if len(self.y) else {}
        found = {**{key: last.get(key) for key in ("trusted", "pseudo_accuracy")}, **final}
        numbers = {key: value for key in NUMBERS if (value := number(found.get(key))) is not None}
        points = dict(zip(*self.series("eval", "error"), strict=True)) | dict(
            zip(*self.series("final", "error"), strict=True)
        )
        points.pop(0, None)  # a baseline takes no step, and has no curve
        table = np.array(sorted(points.items()), dtype=np.float64).reshape(-1, 2)
        curve = table[:, 0], table[:, 1]
        if not len(self.y):
            return Outcome(seed, numbers, curve)
        classes, decided = self.classes(), self._decided()
        return Outcome(seed, numbers, curve, classes, self.confidence(), self.uncertainty(), decided)

    def _decided(self) -> dict[str, float]:
        """The numbers of DECIDED on the test images; none where the test images are the held-out images themselves."""
        known = self.calibration
        if known is None or known.y is None or torch.equal(known.y, self.y):
            return {}
        found: dict[str, float | None] = {}
        if after := self.calibrated():
            found = {"temperature": known.temperature, "ece": self.scores.ece, "calibrated_ece": after.scores.ece}
            found |= {"uce": self.scores.uce, "calibrated_uce": after.scores.uce}
        if known.n >= fewest_labels(TARGET):
            wrong = self.prediction.label != self.y
            kept, error = known.abstention(TARGET).measured(self.prediction.entropy, wrong)
            found |= {"kept": 100 * kept, "kept_error": error}
        return {key: value for key, value in found.items() if value is not None}


@dataclass(frozen=True)
class Outcome:
    """The summary of a finished run: its numbers, and the data of the figures that show many runs.

    Keeping the predictions of every run in a comparison would take too much memory.
    """

    seed: int
    numbers: Mapping[str, float]  # those of NUMBERS that are known
    curve: Series = field(default_factory=_no_series)  # steps, test error in %
    classes: list[ClassRow] = field(default_factory=list)
    confidence: Reliability | None = None
    uncertainty: Reliability | None = None
    decided: Mapping[str, float] = field(default_factory=dict)  # those of DECIDED that are known


@dataclass(frozen=True)
class Method:
    """All runs of one method."""

    name: str
    outcomes: list[Outcome]
    problems: Mapping[int, str] = field(default_factory=dict)  # seed → why its run did not finish
    paper: tuple[float, float | None] | None = None  # the published error, %, and its deviation
    iterations: int | None = None

    def values(self, key: str) -> list[float]:
        """One number from every finished run that has it."""
        return [value for run in self.outcomes if (value := number(run.numbers.get(key))) is not None]

    def mean(self, key: str) -> float | None:
        """The mean over seeds; None where no run has the number."""
        return _mean(self.values(key))

    def mean_decided(self, key: str) -> float | None:
        """The mean over seeds of one number of DECIDED; None where no run has it."""
        return _mean([run.decided[key] for run in self.outcomes if key in run.decided])

    def spread(self, key: str) -> float | None:
        """The sample standard deviation over seeds; None for fewer than two."""
        values = self.values(key)
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def curve(self) -> tuple[Series, npt.NDArray[np.float64]]:
        """(steps, mean error) and the deviation over seeds, at the steps at which every seed was evaluated."""
        curves = [dict(zip(*run.curve, strict=True)) for run in self.outcomes if len(run.curve[0])]
        steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
        if not steps:
            return _no_series(), np.zeros(0)
        errors = np.array([[curve[step] for step in steps] for curve in curves])
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

    def reliability(self, score: str) -> Reliability | None:
        """The bins of `confidence` or `uncertainty` over the test images of all seeds; None where there are none."""
        bins = [getattr(run, score) for run in self.outcomes if getattr(run, score) is not None]
        return pooled(bins) if bins else None


def _to_beat(name: str) -> tuple[str, ...]:
    """The simpler methods that a method has to beat to be worth its time."""
    if name in BASELINES:
        return ()
    return ("probe",) if name == BASELINE else ("probe", BASELINE)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def pooled(bins: Sequence[Reliability]) -> Reliability:
    """The bins of several runs merged into the bins of all their images."""
    counts = torch.stack([b.count for b in bins])
    count = counts.sum(0)

    def average(values: list[Tensor]) -> Tensor:
        return (torch.stack(values) * counts).nan_to_num(0.0).sum(0) / count

    return Reliability(bins[0].edges, count, average([b.score for b in bins]), average([b.outcome for b in bins]))


@dataclass(frozen=True)
class Comparison:
    """The data of a page: methods over seeds, and for the page of a single run its full record."""

    title: str
    methods: list[Method]
    settings: Mapping[str, object] = field(default_factory=dict)  # dotted key → value, equal in all runs
    swept: str | None = None  # the key of a sweep; the methods' names are its values
    apart: Mapping[str, list[object]] = field(default_factory=dict)  # dotted key → the value of each method
    run: RunRecord | None = None  # the run whose page this is; `methods` begins with its summary

    @property
    def heading(self) -> str:
        """Heading of the first column of its tables."""
        return self.swept or "Method"

    def error_of(self, name: str) -> float | None:
        """The mean error of the method called `name`; None where it is not among the methods."""
        found = [method.mean("error") for method in self.methods if method.name == name]
        return found[0] if found else None

    def note(self, method: Method) -> str:
        """Caveats to a method's numbers: failed seeds, not better than a simpler method, no test images."""
        reasons = [f"seed {seed} failed: {why}" for seed, why in sorted(method.problems.items())]
        if len(set(method.problems.values())) == 1 and not method.outcomes:
            reasons = [f"failed: {next(iter(method.problems.values()))}"]
        error = method.mean("error")
        for name in _to_beat(method.name):
            other = self.error_of(name)
            if error is not None and other is not None and error >= other:
                reasons.append(f"did not beat {name}")
        if method.outcomes and error is None:
            reasons.append("no test images to measure it on")
        return "; ".join(reasons)

    def rows(self) -> list[dict[str, Any]]:
        """One row per method with means and deviations over seeds; None for missing numbers."""
        return [self._row(method) for method in self.methods]

    def _row(self, method: Method) -> dict[str, Any]:
        row: dict[str, Any] = {"method": method.name, "seeds": len(method.outcomes), "failed": len(method.problems)}
        for key in NUMBERS:
            row[key] = method.mean(key)
            if key in WITH_SPREAD:
                row[f"{key}_std"] = method.spread(key)
        row["paper_error"], row["paper_error_std"] = method.paper or (None, None)
        return {**row, "iterations": method.iterations, "note": self.note(method)}
