"""What the labels of an audit say: the model's error on the pool with an interval, overall and in parts.

A plain audit has Clopper and Pearson's interval. Who looks at several sizes of the sample, and stops when he likes what
he sees, is misled more often than once; so the looks share the probability α = 1 − level to be misled. A look takes
what is left of α, an interim look half of it. If nothing is left, another look takes α/2 on top, and the level at which
all intervals hold together falls below the one that was asked for (Bonferroni).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npmatch.decide import Abstention
from npmatch.decide.calibration import Calibration
from npmatch.errors import NPMatchError
from npmatch.metrics.intervals import Interval, clopper_pearson
from npmatch.metrics.weighted_sample import betting_interval, weighted_error
from npmatch.predict.saved import load_calibration
from npmatch.runs.audit_record import Audit, AuditRecord, DrawnImage, Look
from npmatch.runs.folder import RunFolder
from npmatch.training.checkpoint import checksum_of

LEVEL = 0.9
FEWEST_OF_CLASS = 5  # labels from which on a class has a row of its own; fewer say nothing
ABSTAIN = 0.05  # target of the abstention whose answers are measured


@dataclass(frozen=True)
class Rate:
    """An error rate with its interval, as shares."""

    errors: int  # among n labels
    n: int
    error: float
    low: float
    high: float


@dataclass(frozen=True)
class AuditResult:
    """The error that an audit has measured."""

    id: str
    weighted: bool
    folder: str | None  # the pool; None is the run's own unlabelled images
    images: int  # in the pool
    level: float  # of each interval here
    joint_level: float  # at which the intervals of all looks at this audit hold together
    overall: Rate
    classes: dict[str, Rate]  # by true class; those with few labels are left out
    kept: Rate | None  # among the answers that abstention does not withhold
    abstain: float | None  # target of that abstention
    random_sample: Interval | None  # of a weighted audit: what as many labels of a plain one would have given

    def asdict(self) -> dict[str, Any]:
        """Everything as JSON."""
        found = asdict(self)
        found["random_sample"] = None if self.random_sample is None else self.random_sample._asdict()
        return found


def spend(audit: Audit, level: float, interim: bool = False) -> Look:
    """Notes a look at the labels there are, and what of α it takes; a second look at the same labels is the same."""
    if not 0 < level < 1:
        raise NPMatchError(f"--level {level}: give a number between 0 and 1, for example 0.9")
    n, alpha = len(audit.labelled), 1 - level
    others = [look for look in audit.looks if look.n != n]
    if audit.weighted:  # its interval holds at all sizes at once
        audit.looks = [*others, look := Look(n, alpha)]
        return look
    left = alpha - sum(look.alpha for look in others)
    share = left if left > 1e-9 else alpha / 2
    before = max((look.alpha for look in audit.looks if look.n == n), default=0.0)
    audit.looks = [*others, look := Look(n, max(before, share / 2 if interim and left > 1e-9 else share))]
    return look


def measure(audit: Audit, look: Look, abstention: Abstention | None = None) -> AuditResult:
    """The error by the first labels, as many as the look had."""
    draws, level = audit.labelled[: look.n], 1 - look.alpha
    kept = None
    if abstention is not None and not audit.weighted:
        kept = _rate([draw for draw in draws if draw.entropy < abstention.threshold], level)
    counts = Counter(draw.label for draw in draws)
    classes = [label for label, n in counts.items() if label is not None and n >= FEWEST_OF_CLASS]
    by_class = {label: _rate([draw for draw in draws if draw.label == label], level) for label in sorted(classes)}
    overall = _weighted_rate(audit, draws, level) if audit.weighted else _rate(draws, level)
    return AuditResult(
        id=audit.id,
        weighted=audit.weighted,
        folder=audit.folder,
        images=audit.images,
        level=level,
        joint_level=level if audit.weighted else 1 - sum(one.alpha for one in audit.looks),
        overall=overall,
        classes={} if audit.weighted else by_class,
        kept=kept,
        abstain=None if kept is None or abstention is None else abstention.target,
        random_sample=(
            clopper_pearson(round(min(max(overall.error, 0), 1) * len(draws)), len(draws), level)
            if audit.weighted
            else None
        ),
    )


def _rate(draws: list[DrawnImage], level: float) -> Rate:
    """The rate of a random sample."""
    errors, n = sum(draw.label != draw.predicted for draw in draws), len(draws)
    return Rate(errors, n, errors / n if n else 0.0, *clopper_pearson(errors, n, level))


def _weighted_rate(audit: Audit, draws: list[DrawnImage], level: float) -> Rate:
    """The rate of a sample by the model's doubt."""
    wrong = np.array([float(draw.label != draw.predicted) for draw in draws])
    doubt, q, smallest = (np.array([getattr(draw, key) for draw in draws]) for key in ("doubt", "q", "smallest_q"))
    error = weighted_error(wrong, doubt, q, audit.images, audit.mean_doubt)
    return Rate(int(wrong.sum()), len(draws), error, *betting_interval(wrong, q, smallest, audit.images, level))


def usual_abstention(calibration: Calibration | None, target: float | None = None) -> Abstention | None:
    """The abstention whose answers are measured: that of `target`, or of ABSTAIN if the run has labels for it."""
    if calibration is None and target is None:
        return None
    try:
        return (calibration or Calibration()).abstention(ABSTAIN if target is None else target)
    except NPMatchError:
        if target is not None:
            raise
        return None


def results_of(run: str | Path) -> list[AuditResult]:
    """What the audits of a run's present model have measured at their last looks."""
    audits = [audit for audit in AuditRecord.load(run).audits if audit.looks]
    if not audits:
        return []
    folder = RunFolder(run)
    model, abstention = checksum_of(folder.model_weights), usual_abstention(load_calibration(folder.path))
    return [measure(audit, audit.looks[-1], abstention) for audit in audits if audit.model == model]
