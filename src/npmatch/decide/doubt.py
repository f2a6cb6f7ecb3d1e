"""The model's own probability that its answer is wrong, where labels do not tell: for draws and estimates."""

from __future__ import annotations

from torch import Tensor

from npmatch.decide.calibration import Calibration
from npmatch.decide.temperature import tempered
from npmatch.types import Prediction

# Pseudo-labels overstate confidence: at their own temperature, models without a calibration doubt their answers two to
# three times less often than they err (docs/audit.md).
UNCALIBRATED = 2.0


def doubts(prediction: Prediction, calibration: Calibration | None) -> Tensor:
    """1 − confidence of N images, float64, at the fitted temperature or, without one, at UNCALIBRATED."""
    fitted = None if calibration is None else calibration.temperature
    softened = tempered(prediction, UNCALIBRATED if fitted is None else fitted)
    return (1 - softened.confidence.double()).clamp(0, 1)
