"""Evaluation of a finished run on its held-out images, and the run's report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from npmatch.config.tree import Config, flatten
from npmatch.data import ImageSet
from npmatch.data.fingerprint import check_same_on_all_ranks, describe_data
from npmatch.data.split import evaluation_set, test_set
from npmatch.decide import Calibration
from npmatch.distributed.devices import choose_device
from npmatch.distributed.ranks import process_group, world_size
from npmatch.errors import NPMatchError
from npmatch.metrics import outlier_auroc, scores
from npmatch.predict.batches import predict_together
from npmatch.predict.classifier import Classifier
from npmatch.predict.saved import ModelSpec, load_calibration
from npmatch.report import Comparison, Method, RunRecord, gallery_indices, write_report
from npmatch.report.audited import AuditedError
from npmatch.runs.audit_result import results_of
from npmatch.runs.estimate import estimate_from
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import RunData, load, open_run_data
from npmatch.types import Prediction
from npmatch.user_code import trusting


class NoTestImagesError(NPMatchError):
    """A run has no labelled images that it was not trained on."""


@dataclass(frozen=True)
class Evaluation:
    """The prediction of a finished run's model for its held-out images."""

    config: Config  # of the run
    spec: ModelSpec  # of the model: classes, normalisation
    held_out: ImageSet  # the images, with their labels
    prediction: Prediction  # without temperature
    calibration: Calibration | None = None  # None also if it was fitted on these images
    foreign: Prediction | None = None  # of test images that belong to no class; None if there are none

    @property
    def scores(self) -> dict[str, float | int]:
        """Error, top-5 error, ECE and UCE in %, NLL in nats, Brier, n images; with foreign ones their AUROC."""
        found = scores(self.prediction, self.held_out.labels).asdict()
        if self.foreign is not None:
            found["outlier_auroc"] = outlier_auroc(self.prediction, self.foreign)
        return found

    @property
    def temperature(self) -> float | None:
        """The temperature fitted on other labels, or None."""
        return None if self.calibration is None else self.calibration.temperature

    @property
    def calibrated(self) -> Prediction | None:
        """The prediction at the temperature, or None if there is no temperature."""
        return None if self.calibration is None or self.temperature is None else self.calibration.apply(self.prediction)

    @property
    def num_held_out(self) -> int:
        """Number of labels the calibration was fitted on."""
        return 0 if self.calibration is None else self.calibration.n


def evaluate_run(
    folder: str | Path, data: str | Path | None = None, device: str | None = None, trust_code: bool = False
) -> Evaluation:
    """Loads a run's model and data, and predicts the held-out images: the test set, or else the validation share.

    `data` is the images' new place, if they have been moved. `trust_code` allows importing and running Python code that
    the run's files name (`package.module:name`).
    """
    folder = Path(folder)
    with trusting(trust_code), process_group(choose_device(device)):
        classifier = load(folder, device)
        run = open_run_data(folder, data)
        if world_size() > 1:
            check_same_on_all_ranks(describe_data(run.dataset, run.split))
        held_out = evaluation_set(run.dataset, run.split)
        if held_out is None:
            raise NoTestImagesError(
                f"{folder}: its data has no test images, and the run kept no validation share; put labelled images "
                "into test/<class>/ and give --data DIR"
            )

        def predict(part: ImageSet) -> Prediction:
            batch = run.config.training.eval_batch
            return predict_together(classifier.model, part.images, classifier.spec, classifier.device, batch)

        prediction = predict(held_out)
        foreign = None if run.dataset.foreign_test is None else predict(run.dataset.foreign_test)
    has_test = test_set(run.dataset, run.split) is not None
    calibration = independent_calibration(classifier.calibration, has_test)
    return Evaluation(run.config, classifier.spec, held_out, prediction, calibration, foreign)


def independent_calibration(calibration: Calibration | None, has_test: bool) -> Calibration | None:
    """The calibration, unless it was fitted on the very images it would be measured on.

    That is so for a run without test images (`has_test` is false), which is evaluated on its validation share.
    """
    fitted_on_them = calibration is not None and calibration.source == "data.validation" and not has_test
    return None if fitted_on_them else calibration


def write_run_report(
    folder: Path, evaluation: Evaluation, path: Path | None = None, records: list[dict[str, Any]] | None = None
) -> Path:
    """Writes RUN/report.html, or `path`; `records` replace the lines of the log if that is not complete yet."""
    return write_report(run_comparison(folder, evaluation, records=records), path or RunFolder(folder).report)


def write_report_of(folder: Path, data: Path | None, device: str | None, path: Path | None = None) -> Path:
    """Writes the report of a finished run, whether it has test images or not."""
    try:
        return write_run_report(folder, evaluate_run(folder, data, device), path)
    except NoTestImagesError:
        classifier = load(folder, device)
        return write_unmeasured_report(classifier, open_run_data(folder, data), path)


def write_unmeasured_report(
    classifier: Classifier, run: RunData, path: Path | None = None, records: list[dict[str, Any]] | None = None
) -> Path:
    """Writes the report of a run without test images: its error is the audits', or is estimated."""
    audited = audited_errors(run.folder)
    record = RunRecord(
        RunFolder(run.folder).records() if records is None else records,
        class_names=classifier.class_names,
        num_labeled=classifier.spec.num_labeled,
        audited=audited,
        estimated=None if audited else estimate_from(classifier, run),
        forecast=RunFolder(run.folder).read_forecast(),
    )
    return write_report(_comparison(record, run.config, ()), path or RunFolder(run.folder).report)


def audited_errors(folder: Path) -> list[AuditedError]:
    """What audits of a run have measured."""
    return [
        AuditedError(
            error=100 * found.overall.error,
            low=100 * found.overall.low,
            high=100 * found.overall.high,
            level=100 * found.level,
            labels=found.overall.n,
            images=found.images,
            folder=found.folder,
        )
        for found in results_of(folder)
    ]


def read_record(run: RunFolder) -> RunRecord:
    """A run's log, and its test predictions and calibration if it has got that far."""
    predictions = run.read_test_predictions()
    if predictions is None:
        return RunRecord(run.records())
    return RunRecord(run.records(), *predictions, load_calibration(run.path))


def run_comparison(
    folder: Path, evaluation: Evaluation, others: Sequence[Method] = (), records: list[dict[str, Any]] | None = None
) -> Comparison:
    """The content of a run's page: the run itself, and the other methods to show beside it."""
    held_out = evaluation.held_out
    shown = gallery_indices(evaluation.prediction, held_out.labels)
    pictures = held_out.images.take(torch.tensor(shown))
    record = RunRecord(
        RunFolder(folder).records() if records is None else records,
        evaluation.prediction,
        held_out.labels,
        evaluation.spec.class_names,
        evaluation.calibration,
        gallery=dict(zip(shown, pictures, strict=True)),
        num_labeled=evaluation.spec.num_labeled,
        audited=audited_errors(folder),
        forecast=RunFolder(folder).read_forecast(),
    )
    return _comparison(record, evaluation.config, others)


def _comparison(record: RunRecord, config: Config, others: Sequence[Method]) -> Comparison:
    """The content of the page of a run."""
    method = Method(config.name, [record.outcome(config.seed)], iterations=config.training.iterations)
    title = f"{config.recipe or config.data.source} · {config.name} · seed {config.seed}"
    return Comparison(title, [method, *others], flatten(config.nested()), run=record)
