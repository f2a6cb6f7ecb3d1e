"""The linear probe beside a run from pretrained weights: its error, and a warning if training has not beaten it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from npmatch.report.formatting import percent
from npmatch.training.log import number


class Probe(NamedTuple):
    """The error in % of logistic regression on the features that the run started from."""

    error: float
    is_estimated: bool = False  # out of fold on the labelled images, as there were no others

    @property
    def words(self) -> str:
        """The error for people."""
        return f"about {percent(self.error)}" if self.is_estimated else percent(self.error)

    def warning(self, own_error: float | None) -> str | None:
        """The warning that a run with `own_error` has not beaten the probe; None if it has, or its error is unknown."""
        if own_error is None or own_error < self.error:
            return None
        return (
            f"training has not beaten a linear probe on the pretrained features: {percent(own_error)} error, the probe "
            f"{self.words}; train longer, lower training.learning_rate, or label more images"
        )


def read_probe(final: Mapping[str, Any]) -> Probe | None:
    """The probe in the final record of a log; None if there is none, as for a run from random weights."""
    if (error := number(final.get("probe_error"))) is not None:
        return Probe(error)
    if (error := number(final.get("probe_error_estimated"))) is not None:
        return Probe(error, is_estimated=True)
    return None
