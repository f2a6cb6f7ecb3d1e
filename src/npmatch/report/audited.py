"""The error on unlabelled images, for a run's page: as audits have measured it, or as the model's confidence has it."""

from __future__ import annotations

from typing import NamedTuple

from npmatch.report.formatting import count, percent


class AuditedError(NamedTuple):
    """The error that an audit has measured; rates in %."""

    error: float
    low: float
    high: float
    level: float  # of the interval
    labels: int  # on which it was measured
    images: int  # in the pool
    folder: str | None = None  # the pool; None is the run's own unlabelled images

    @property
    def words(self) -> str:
        """The interval and its sample for people."""
        of = (
            f"{count(self.images)} images in {self.folder}"
            if self.folder
            else f"{count(self.images)} unlabelled images"
        )
        interval = f"{self.low:.1f} to {percent(self.high)} at a level of {self.level:.3g} %"
        return f"{interval}, from {count(self.labels)} labels of {of}"


class EstimatedError(NamedTuple):
    """An error rate that nobody has measured."""

    error: float  # %, the mean of the model's doubts
    images: int  # unlabelled ones over which it was averaged

    @property
    def words(self) -> str:
        """How it was estimated, for people."""
        return f"estimated, not measured: {self.source}"

    @property
    def source(self) -> str:
        """Where it is from."""
        return f"from the model's own confidence on {count(self.images)} unlabelled images"
