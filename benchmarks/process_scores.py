"""Scores of one finished run: its errors and their cost, and what its uncertainty and its context are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.far_sets import FarSource, far_sets
from benchmarks.timing import seconds_per_call
from npmatch.data import ArrayImages, Dataset, ImageSet, ImageStore, Split
from npmatch.data.images import select_images
from npmatch.data.split import evaluation_set
from npmatch.decide.novelty import MAX_IMAGES, reference_positions
from npmatch.decide.novelty import NEIGHBOURS as OOD_NEIGHBOURS
from npmatch.errors import NPMatchError
from npmatch.metrics import auroc, scores
from npmatch.objectives.losses import mean_prediction
from npmatch.predict.batches import predict_store
from npmatch.predict.classifier import Classifier
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import RunData, load, open_run_data
from npmatch.runs.process import context_rows, describe, has_context
from npmatch.training.log import last_record
from npmatch.types import FOREIGN, Prediction

MOST_UNLABELED = 5000  # images that are judged, evenly spaced
MOST_TIMED = 1000  # images that are predicted against the clock
NEIGHBOURS = 50  # the distance of an image is that to this one of its nearest training images
SCORES = ("entropy", "disagreement", "1 − max p", "outlier", "distance", "ood")
CONTEXTS = ("context rebuilt", "labels permuted", "context halved", "a class removed")


class Judge(StrEnum):
    """The images by which a run is judged."""

    test = "test"
    unlabeled = "unlabeled"  # for tuning: training images whose labels were hidden

    @property
    def about(self) -> str:
        """A note for the reader of the scores."""
        images = "test images" if self == Judge.test else f"at most {MOST_UNLABELED:,} unlabelled training images"
        return (
            f"± is the sample standard deviation over seeds. Judged by {images}. Distance: to the {NEIGHBOURS}th "
            f"nearest of up to {MAX_IMAGES:,} training images, in features of unit variance; ood: as `predict --ood`, "
            f"to the {OOD_NEIGHBOURS}th. Outlier: what the model itself estimates, of the kernel process its vacuity."
        )


Seen = tuple[Prediction, dict[str, Tensor]]  # a prediction, and SCORES of its uncertainty
Look = Callable[[ImageStore], Seen]


def judge_run(folder: Path, judge: Judge, far: list[FarSource], data: Path | None, device: str) -> dict[str, Any]:
    """Every score of a finished run; error, ECE, UCE, AUROC and shares in %, NLL in nats."""
    classifier, run = load(folder, device), open_run_data(folder, data)
    judged, near = judged_images(run, judge)

    def look(images: ImageStore) -> Seen:
        prediction, f = describe(classifier, run, images)
        return prediction, doubts(classifier, prediction, f)

    prediction, f = describe(classifier, run, judged.images)
    known = prediction, doubts(classifier, prediction, f)
    row = {**prediction_scores(known, look, judged, near, far), **costs([(classifier, run)], judged.images)}
    if has_context(classifier):
        rows = {one.change: one.error for one in context_rows(classifier, run, f, judged.labels)}
        row |= {f"context/{change}": rows[change] for change in CONTEXTS}
    trusted = (last_record(RunFolder(folder).records(), "train") or {}).get("foreign_trusted")
    return row if trusted is None else {**row, "foreign_trusted": 100 * trusted}


def judge_ensemble(
    folders: list[Path], judge: Judge, far: list[FarSource], data: Path | None, device: str
) -> dict[str, Any]:
    """The scores of several finished runs together, which were trained on the same labels; times are their sums."""
    members = [(load(folder, device), open_run_data(folder, data)) for folder in folders]
    judged, near = judged_images(members[0][1], judge)

    def look(images: ImageStore) -> Seen:
        samples = torch.stack([describe(classifier, run, images)[0].probs for classifier, run in members])
        prediction = mean_prediction(samples)
        return prediction, doubts(None, prediction, None)

    return {**prediction_scores(look(judged.images), look, judged, near, far), **costs(members, judged.images)}


def prediction_scores(
    seen: Seen, look: Look, judged: ImageSet, near: ImageSet | None, far: list[FarSource]
) -> dict[str, Any]:
    """Errors and calibration of what was `seen` of judged images, and how well it tells images of no known class."""
    prediction, known = seen
    found = scores(prediction, judged.labels)
    row: dict[str, Any] = {key: getattr(found, key) for key in ("n", "error", "nll", "ece", "uce")}
    row |= error_auroc(known, prediction.label != judged.labels)
    for name, images in far_sets(far, judged, near).items():
        _, unknown = look(images)
        row |= {f"{name}/{score}": auroc(known[score], unknown[score]) for score in known}
    return row


def costs(members: list[tuple[Classifier, RunData]], images: ImageStore) -> dict[str, float]:
    """Milliseconds of a step and seconds of 1,000 predictions, of all members together."""
    return {
        "step_ms": sum(1000 * seconds_per_step(RunFolder(run.folder).records()) for _, run in members),
        "predict_s": sum(seconds_per_thousand(classifier, run, images) for classifier, run in members),
    }


def judged_images(run: RunData, judge: Judge) -> tuple[ImageSet, ImageSet | None]:
    """Images to judge by, and images of the same data set that belong to no known class, if it has some."""
    if judge == Judge.test:
        judged = evaluation_set(run.dataset, run.split)
        if judged is None:
            raise NPMatchError(f"{run.folder}: its data has no test images; use --judge unlabeled")
        return judged, run.dataset.foreign_test
    return hidden_images(run.dataset, run.split)


def hidden_images(dataset: Dataset, split: Split) -> tuple[ImageSet, ImageSet | None]:
    """Unlabelled training images whose labels are known but were hidden, and those of no known class, if any."""
    hidden = split.unlabeled[~torch.isin(split.unlabeled, split.labeled)]
    labels = dataset.train.labels[hidden]
    known, foreign = (
        select_images(dataset.train, part[reference_positions(len(part), MOST_UNLABELED)])
        for part in (hidden[labels >= 0], hidden[labels == FOREIGN])
    )
    if not len(known):
        raise NPMatchError(f"{dataset.name}: the classes of its unlabelled images are not known; judge by test images")
    return known, foreign if len(foreign) else None


def error_auroc(known: dict[str, Tensor], wrong: Tensor) -> dict[str, float]:
    """How well wrong answers are told from right ones; nothing where all are right, or all wrong."""
    if bool(wrong.all()) or not bool(wrong.any()):
        return {}
    by = [score for score in ("entropy", "disagreement") if score in known]
    return {f"wrong/{score}": auroc(known[score][~wrong], known[score][wrong]) for score in by}


def doubts(classifier: Classifier | None, prediction: Prediction, features: Tensor | None) -> dict[str, Tensor]:
    """SCORES N that should be higher for images of no known class, as far as there are samples and features."""
    calibration = None if classifier is None else classifier.calibration
    novelty = None if calibration is None else calibration.novelty
    distance = ood = None
    if novelty is not None and features is not None:
        distance, ood = novelty.score(features, NEIGHBOURS), novelty.score(features)
    unsure = (prediction.entropy, prediction.disagreement, 1 - prediction.confidence)
    values = (*unsure, prediction.outlier, distance, ood)
    return {score: value for score, value in zip(SCORES, values, strict=True) if value is not None}


def seconds_per_step(records: list[dict[str, Any]]) -> float:
    """Median over the intervals of the log: the first step may compile, and some intervals hold an evaluation."""
    return median(_seconds_per_step(records))


def _seconds_per_step(records: list[dict[str, Any]]) -> Iterator[float]:
    step, seconds = 0, 0.0
    for record in records:
        if record["kind"] == "train":
            yield (record["seconds"] - seconds) / (record["step"] - step)
            step, seconds = record["step"], record["seconds"]


def seconds_per_thousand(classifier: Classifier, run: RunData, images: ImageStore) -> float:
    """Seconds to predict 1,000 images, which are in memory."""
    held = ArrayImages(images.take(reference_positions(len(images), MOST_TIMED)))
    batch, spec, device = run.config.training.eval_batch, classifier.spec, classifier.device
    taken = seconds_per_call(lambda: predict_store(classifier.model, held, spec, device, batch), str(device), warm_up=1)
    return 1000 * taken / len(held)
