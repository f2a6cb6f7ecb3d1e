"""A finished run's model on the images it is measured on: `evaluate_run`, and the report of it."""

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
from npmatch.metrics import scores
from npmatch.predict.batches import predict_together
from npmatch.predict.saved import ModelSpec
from npmatch.report import Comparison, Method, RunRecord, gallery_indices, write_report
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import load, open_run_data
from npmatch.types import Prediction
from npmatch.user_code import trusting


@dataclass(frozen=True)
class Evaluation:
    """A finished run's model on its held-out images."""

    config: Config  # of the run
    spec: ModelSpec  # of the model: classes, normalisation
    held_out: ImageSet  # the images, with their labels
    prediction: Prediction  # what the model says of them
    calibration: Calibration | None = None  # None too where it was fitted on these very images

    @property
    def scores(self) -> dict[str, float | int]:
        """Error, top-5 error, ECE and UCE in %, NLL in nats, Brier, and n, the number of images."""
        return scores(self.prediction, self.held_out.labels).asdict()

    @property
    def temperature(self) -> float | None:
        """That was fitted on other labels; None where there is none."""
        return None if self.calibration is None else self.calibration.temperature

    @property
    def calibrated(self) -> Prediction | None:
        """The prediction at the temperature; None where there is none."""
        return None if self.calibration is None or self.temperature is None else self.calibration.apply(self.prediction)

    @property
    def num_held_out(self) -> int:
        """Labels the calibration was fitted on."""
        return 0 if self.calibration is None else self.calibration.n


def evaluate_run(
    folder: str | Path, data: str | Path | None = None, device: str | None = None, trust_code: bool = False
) -> Evaluation:
    """Loads a run's model and data again and predicts the held-out images.

    `data` says where the images are, if they have moved; `trust_code` whether the run's files may name Python of yours
    (`package.module:name`), which is then run.
    """
    folder = Path(folder)
    with trusting(trust_code), process_group(choose_device(device)):
        classifier = load(folder, device)
        run = open_run_data(folder, data)
        if world_size() > 1:
            check_same_on_all_ranks(describe_data(run.dataset, run.split))
        held_out = evaluation_set(run.dataset, run.split)
        if held_out is None:
            raise NPMatchError(
                f"{folder}: its data has no test images and the run kept no validation share; put labelled images into "
                "test/<class>/ and give --data DIR"
            )
        batch = run.config.training.eval_batch
        prediction = predict_together(classifier.model, held_out.images, classifier.spec, classifier.device, batch)
    tested = test_set(run.dataset, run.split) is not None
    calibration = honest_calibration(classifier.calibration, tested)
    return Evaluation(run.config, classifier.spec, held_out, prediction, calibration)


def honest_calibration(calibration: Calibration | None, tested: bool) -> Calibration | None:
    """What may be measured on the evaluation images: nothing that was fitted on these very images.

    `tested` says whether they are test images, and not for lack of any the ones held out.
    """
    fitted_on_them = calibration is not None and calibration.source == "data.validation" and not tested
    return None if fitted_on_them else calibration


def write_run_report(
    folder: Path, found: Evaluation, path: Path | None = None, records: list[dict[str, Any]] | None = None
) -> Path:
    """RUN/report.html, or another path; `records` are the lines of the log where it has not got them all yet."""
    return write_report(run_comparison(folder, found, records=records), path or RunFolder(folder).report)


def read_record(run: RunFolder) -> RunRecord:
    """A run's log, and where it has come to them its test predictions and its calibration."""
    predictions = run.read_test_predictions()
    if predictions is None:
        return RunRecord(run.records())
    return RunRecord(run.records(), *predictions, Calibration.load(run.path))


def run_comparison(
    folder: Path, found: Evaluation, others: Sequence[Method] = (), records: list[dict[str, Any]] | None = None
) -> Comparison:
    """What the page of a run shows: the run, and the methods it is shown beside."""
    config, held_out = found.config, found.held_out
    shown = gallery_indices(found.prediction, held_out.labels)
    pictures = held_out.images.take(torch.tensor(shown))
    record = RunRecord(
        RunFolder(folder).records() if records is None else records,
        found.prediction,
        held_out.labels,
        found.spec.class_names,
        found.calibration,
        gallery=dict(zip(shown, pictures, strict=True)),
        num_labeled=found.spec.num_labeled,
    )
    method = Method(config.name, [record.outcome(config.seed)], iterations=config.training.iterations)
    title = f"{config.recipe or config.data.source} · {config.name} · seed {config.seed}"
    return Comparison(title, [method, *others], flatten(config.nested()), run=record)
