"""Metrics of a prediction where labels are known: error, calibration error, per class, selective risk, outliers.

Where labels are known of a sample alone: intervals of the error rate.
"""

from npmatch.metrics.calibration_error import (
    Reliability,
    expected_calibration_error,
    reliability_bins,
    uncertainty_bins,
    uncertainty_calibration_error,
)
from npmatch.metrics.classwise import ClassRow, balanced_accuracy, classwise, confusion, geometric_accuracy
from npmatch.metrics.intervals import Interval, clopper_pearson
from npmatch.metrics.outliers import auroc, outlier_auroc
from npmatch.metrics.scores import Scores, scores
from npmatch.metrics.selective import RiskCoverage, aurc, risk_coverage

__all__ = [
    "ClassRow",
    "Interval",
    "Reliability",
    "RiskCoverage",
    "Scores",
    "aurc",
    "auroc",
    "balanced_accuracy",
    "classwise",
    "clopper_pearson",
    "confusion",
    "expected_calibration_error",
    "geometric_accuracy",
    "outlier_auroc",
    "reliability_bins",
    "risk_coverage",
    "scores",
    "uncertainty_bins",
    "uncertainty_calibration_error",
]
