"""The state behind the page of one run, finished or still training: its log, its model, then its images."""

from __future__ import annotations

import shlex
from pathlib import Path
from threading import Lock
from typing import Any

from torch import Tensor

from npmatch.config.tree import read_config_file
from npmatch.errors import NPMatchError
from npmatch.predict.batches import describe_batch
from npmatch.predict.classifier import Classifier
from npmatch.report.formatting import printable
from npmatch.report.gallery import is_crisp, png_data_uri
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import RunData, load, open_run_data
from npmatch.training.log import final_scores
from npmatch.types import Prediction
from npmatch.web.answer import (
    NearestNeighbours,
    describe_answer,
    encode_image,
    index_labeled_images,
    make_decider,
)
from npmatch.web.background import Background
from npmatch.web.decoding import shared_decoder
from npmatch.web.figures import FigureCache
from npmatch.web.labelling import Labelling

MAX_PIXELS = 50_000_000  # of an uploaded image
NEIGHBOURS_SHOWN = 8
POLL_SECONDS = 2.0  # between two checks whether a run has finished


class Site(Background):
    """One run. `start` loads its model and images in a background thread; every method works at any time."""

    def __init__(self, folder: Path, data: Path | None = None, device: str | None = None) -> None:
        """Checks that `folder` holds a run; `data` is the folder of its images if they have moved."""
        super().__init__("prepare")
        self.run = RunFolder(folder)
        if not self.run.exists():
            raise NPMatchError(f"{folder}: no such run")
        self.folder, self._data, self._device = folder, data, device
        self.iterations = read_config_file(self.run.config).get("training.iterations")
        self.figures = FigureCache(folder)
        self.classifier: Classifier | None = None
        self.neighbours: NearestNeighbours | None = None
        self._labelling: Labelling | None = None
        self._log: tuple[str, list[dict[str, Any]]] = ("", [])  # version of the log, and its records
        self._model_lock = Lock()

    def _work(self) -> None:
        """Waits until the run has finished, loads its model and its images, and ranks these by uncertainty."""
        while not self.run.is_finished():
            if self._stop.wait(POLL_SECONDS):
                return
        shared_decoder().start()
        classifier = load(self.folder, self._device)
        self._decider = make_decider(classifier.calibration)
        self.classifier = classifier
        run = self._open_data()
        self._labelling = labelling = Labelling(run)
        self.neighbours = index_labeled_images(classifier, run.dataset.train, run.split)
        calibrated = self._decider.calibration.apply
        labelling.rank(lambda images: calibrated(self._describe(classifier, images)[0]), self._stop.is_set)

    def _open_data(self) -> RunData:
        """The run's images and split."""
        try:
            return open_run_data(self.folder, self._data)
        except NPMatchError as error:
            raise NPMatchError(f"{error}; if the images have moved, start the page with --data DIR") from error

    def _describe(self, classifier: Classifier, images: Tensor) -> tuple[Prediction, Tensor]:
        """Predictions and features of uint8 images n C H W; only one batch runs at a time."""
        with self._model_lock:
            return describe_batch(classifier.model, images, classifier.spec, classifier.device)

    @property
    def labelling(self) -> Labelling:
        """The run's unlabelled images; an error says in one line why they are not available."""
        if self._labelling is None:
            raise NPMatchError(self.problem or "the images are not loaded yet; try again in a moment")
        return self._labelling

    def answer(self, content: bytes) -> dict[str, Any]:
        """The model's prediction for one image file, with its uncertainty, decisions and nearest labelled images."""
        classifier = self.classifier
        if classifier is None:
            raise NPMatchError(self.problem or "there is no model yet; wait until the run has finished")
        spec = classifier.spec
        image = shared_decoder().decode(content, spec.stored_side, spec.channels, MAX_PIXELS)
        raw, features = self._describe(classifier, image[None])
        decisions = self._decider(raw, features)
        neighbours = self.neighbours.nearest(features[0], NEIGHBOURS_SHOWN) if self.neighbours is not None else []
        return {
            **describe_answer(decisions, self._decider, spec.class_names),
            "neighbours": [{"image": i, "label": k, "likeness": s} for i, k, s in neighbours],
            "seen": png_data_uri(image),
            "crisp": is_crisp(image),
        }

    def image(self, position: int) -> tuple[bytes, str]:
        """A training image as PNG or JPEG, and its media type."""
        images = self.labelling.train.images
        if not 0 <= position < len(images):
            raise NPMatchError(f"image {position}: this run has the images 0 to {len(images) - 1}")
        return encode_image(images, position)

    def about(self) -> dict[str, Any]:
        """The facts of the run that do not change once its model is loaded."""
        spec = self.classifier.spec if self.classifier is not None else None
        return {
            "run": printable(self.folder.resolve().name),
            "folder": printable(self.folder),
            "classes": [printable(name) for name in spec.class_names] if spec is not None else [],
            "learned_from": spec.num_labeled if spec is not None else None,
            "iterations": self.iterations,
            "command": f"npmatch train --resume-from {shlex.quote(str(self.folder))}",
        }

    def status(self) -> dict[str, Any]:
        """The progress of training and labelling; the page requests it every few seconds."""
        records = self._records()
        problem, counts = self.problem, None
        try:
            if self._labelling is not None:
                counts = self._labelling.counts()
                problem = problem or self._labelling.book.restored
        except NPMatchError as error:  # labels.csv was edited by hand and cannot be read
            problem = problem or str(error)
        final = final_scores(records)
        return {
            "has_model": self.classifier is not None,
            "stage": self._stage(),
            "problem": problem and printable(problem),
            "step": max((r.get("step", 0) for r in records), default=0),
            "scores": {key: final[key] for key in ("error", "ece", "uce", "n") if key in final},
            "counts": counts,
            "figures": self.figures.version(),
        }

    def _stage(self) -> str:
        """`training`, `stopped` before the end, `opening` (finished, model not loaded yet) or `ready`."""
        if self.classifier is not None:
            return "ready"
        if self.run.is_finished():
            return "opening"
        return "training" if self.run.is_locked() else "stopped"

    def _records(self) -> list[dict[str, Any]]:
        """The log's records, read again only where the log has changed."""
        version = self.figures.version()
        if self._log[0] != version:
            self._log = version, self.run.records()
        return self._log[1]
