"""Metrics of a prediction where labels are known: error, calibration error, class by class, selective risk."""

from npmatch.metrics.calibration_error import (
    Reliability,
    expected_calibration_error,
    reliability_bins,
    uncertainty_bins,
    uncertainty_calibration_error,
)
from npmatch.metrics.classwise import ClassRow, classwise, confusion
from npmatch.metrics.scores import Scores, scores
from npmatch.metrics.selective import RiskCoverage, aurc, risk_coverage

__all__ = [
    "ClassRow",
    "Reliability",
    "RiskCoverage",
    "Scores",
    "aurc",
    "classwise",
    "confusion",
    "expected_calibration_error",
    "reliability_bins",
    "risk_coverage",
    "scores",
    "uncertainty_bins",
    "uncertainty_calibration_error",
]
