"""The error of a model where no label measures it: what its own confidence on the unlabelled images says."""

from __future__ import annotations

from pathlib import Path

import torch

from npmatch.data.images import SelectedImages
from npmatch.decide.doubt import doubts
from npmatch.errors import NPMatchError
from npmatch.predict.batches import predict_store
from npmatch.predict.classifier import Classifier
from npmatch.report.audited import EstimatedError
from npmatch.runs.open import RunData, load, open_run_data
from npmatch.types import ImageStore

MOST_IMAGES = 2000  # evenly spaced ones of a larger pool: more would hardly change the estimate


def estimate_error(run: str | Path, data: str | Path | None = None, device: str | None = None) -> EstimatedError:
    """The estimate for a finished run; a run without an unlabelled image is an error."""
    found = estimate_from(load(run, device), open_run_data(run, data))
    if found is None:
        raise NPMatchError(f"{run}: has neither test images to measure its error on nor unlabelled ones; add some")
    return found


def estimate_from(classifier: Classifier, run: RunData) -> EstimatedError | None:
    """The mean doubt of the model on its unlabelled images; None if there is none."""
    return estimate_on(classifier, run.unlabeled().images, run.config.training.eval_batch)


def estimate_on(classifier: Classifier, images: ImageStore, batch: int) -> EstimatedError | None:
    """The mean doubt of the model on images without a label; None if there is none."""
    if not len(images):
        return None
    number = min(len(images), MOST_IMAGES)
    spread = SelectedImages(images, torch.arange(number) * len(images) // number)
    prediction = predict_store(classifier.model, spread, classifier.spec, classifier.device, batch)
    return EstimatedError(100 * float(doubts(prediction, classifier.calibration).mean()), number)
