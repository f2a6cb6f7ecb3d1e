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

    @property
    def share(self) -> str:
        """The estimate for people; a weighted one may lie a little outside 0 to 100 %."""
        return f"{100 * min(max(self.error, 0.0), 1.0):.1f} %"

    @property
    def range(self) -> str:
        """The interval for people."""
        return _range(self.low, self.high)


def _range(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f} %"


CLASS_COLUMNS = ("class", "labels", "wrong", "error", "interval")


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

    def lines(self, run: str | Path) -> list[str]:
        """What was measured, in words: the command prints these lines, and the page shows them."""
        overall, lines = self.overall, list[str]()
        pool = f"its {self.images:,} unlabelled images" if self.folder is None else f"{self.images:,} images"
        counted = f"{overall.errors} of {overall.n} labelled images were wrong"
        lines.append(f"{run}: {overall.share} error on {pool} ({counted})")
        lines.append(f"{100 * self.level:.3g} % interval: {overall.range}")
        if self.random_sample is not None:
            lines.append(
                "drawn by doubt: the estimate varies less than that of a random sample, but the interval is wider: as "
                f"many labels drawn at random would give about {_range(*self.random_sample)}"
            )
        elif self.joint_level < self.level - 1e-9:
            lines.append(f"the intervals of all looks at this audit hold together with {100 * self.joint_level:.3g} %")
        if (kept := self.kept) is not None:
            words = f"{kept.share} error, {kept.range}" if kept.n else "nothing to measure"
            lines.append(f"answers that predict --abstain {self.abstain:g} keeps, {kept.n} of {overall.n}: {words}")
        return lines

    def class_rows(self) -> list[tuple[str, ...]]:
        """Class, labels, wrong ones, error and interval of each class that has labels enough."""
        return [(name, str(rate.n), str(rate.errors), rate.share, rate.range) for name, rate in self.classes.items()]


def spend(audit: Audit, level: float, interim: bool = False) -> Look:
    """Notes a look at the labels there are, and what of α it takes; a second look at the same labels is the same."""
    if not 0 < level < 1:
        raise NPMatchError(f"--level {level}: give a number between 0 and 1, for example 0.9")
    n, alpha = len(audit.labelled), 1 - level
    others = [look for look in audit.looks if look.n != n]
    if audit.weighted:  # its interval holds at all sizes at once
        audit.looks = [*others, look := Look(n, alpha)]
        return look
    before = max((look.alpha for look in audit.looks if look.n == n), default=0.0)
    audit.looks = [*others, look := Look(n, max(before, _share_of_look(others, alpha, interim)))]
    return look


def _share_of_look(before: list[Look], alpha: float, interim: bool) -> float:
    """What a look takes of α after others."""
    left = alpha - sum(look.alpha for look in before)
    if left <= 1e-9:
        return alpha / 2
    return left / 2 if interim else left


def levels_after(audit: Audit, level: float = LEVEL, interim: bool = False) -> tuple[float, float]:
    """The level of the interval that one more look would have, and that at which all would then hold together."""
    share = _share_of_look(audit.looks, 1 - level, interim)
    return 1 - share, 1 - share - sum(look.alpha for look in audit.looks)


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
