"""The error of a model where no label measures it: what its own confidence on the unlabelled images says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from npmatch.data.images import SelectedImages
from npmatch.errors import NPMatchError
from npmatch.predict.batches import predict_store
from npmatch.report.formatting import count, percent
from npmatch.runs.open import load, open_run_data

MOST_IMAGES = 10_000  # evenly spaced ones of a larger pool: more would change the third digit


class Estimate(NamedTuple):
    """An error rate that nobody has measured."""

    error: float  # %, the mean of 1 − confidence
    images: int  # over which it was averaged

    @property
    def words(self) -> str:
        """The estimate for people."""
        return (
            f"about {percent(self.error)} error, estimated, not measured: from the model's own confidence on "
            f"{count(self.images)} unlabelled images; npmatch audit measures it"
        )

    def asdict(self) -> dict[str, Any]:
        """The estimate as JSON."""
        return {"error_estimated": self.error, "images": self.images}


def estimate_error(run: str | Path, data: str | Path | None = None, device: str | None = None) -> Estimate:
    """The mean of 1 − confidence, at the run's temperature, over the run's unlabelled images."""
    classifier, opened = load(run, device), open_run_data(run, data)
    images = opened.unlabeled().images
    if not len(images):
        raise NPMatchError(
            f"{run}: has no unlabelled image to estimate its error from, and no test image to measure it"
        )
    number = min(len(images), MOST_IMAGES)
    spread = SelectedImages(images, torch.arange(number) * len(images) // number)
    batch = opened.config.training.eval_batch
    prediction = predict_store(classifier.model, spread, classifier.spec, classifier.device, batch)
    if classifier.calibration is not None:
        prediction = classifier.calibration.apply(prediction)
    return Estimate(100 * float((1 - prediction.confidence.double()).mean()), number)
