"""What the page knows of a run, be it finished or going on: its log, then its model, then its images."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from torch import Tensor

from npmatch.config.tree import read_config_file
from npmatch.data import decode_image
from npmatch.errors import NPMatchError
from npmatch.predict.batches import describe_batch
from npmatch.predict.classifier import Classifier
from npmatch.report.formatting import printable
from npmatch.report.gallery import is_crisp, png_data_uri
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import RunData, load, open_run_data
from npmatch.training.log import final_scores
from npmatch.types import Prediction
from npmatch.web.answer import Neighbours, labeled_neighbours, make_decider, picture, remarks, uncertainty
from npmatch.web.figures import FigureBook
from npmatch.web.labelling import Labelling

MAX_PIXELS = 50_000_000  # of an upload
NEIGHBOURS_SHOWN = 8
CLASSES_SHOWN = 10
LOOK_AGAIN = 2.0  # seconds between two looks at a run that is still going on


class Site:
    """One run. `start` fills it in a thread of its own; every part can be asked for at any time."""

    def __init__(self, folder: Path, data: Path | None = None, device: str | None = None) -> None:
        """Only looks whether there is a run; `data` where its images have moved."""
        self.run = RunFolder(folder)
        if not self.run.exists():
            raise NPMatchError(f"{folder}: no such run")
        self.folder, self._data, self._device = folder, data, device
        self.iterations = read_config_file(self.run.config).get("training.iterations")
        self.figures = FigureBook(folder)
        self.problem: str | None = None  # why something is missing, for the page to say
        self.classifier: Classifier | None = None
        self.neighbours: Neighbours | None = None
        self._labelling: Labelling | None = None
        self._log: tuple[str, list[dict[str, Any]]] = ("", [])
        self._model = Lock()
        self._stop = Event()
        self._thread = Thread(target=self._prepare, daemon=True, name="prepare")

    def start(self) -> None:
        """Begins to prepare."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the preparation where it is."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _prepare(self) -> None:
        """Waits for the end of the run, loads its model, then the images, and orders these by uncertainty."""
        while not self.run.is_finished():
            if self._stop.wait(LOOK_AGAIN):
                return
        try:
            classifier = load(self.folder, self._device)
            self._decider = make_decider(classifier.calibration)
            self.classifier = classifier
            run = self._open_data()
            self._labelling = labelling = Labelling(run)
            self.neighbours = labeled_neighbours(classifier, run.dataset.train, run.split)
            calibrated = self._decider.calibration.apply
            labelling.rank(lambda images: calibrated(self._describe(classifier, images)[0]), self._stop.is_set)
        except NPMatchError as error:
            self.problem = str(error)
        except Exception as error:  # nobody waits for this thread: the page must say it
            self.problem = f"{type(error).__name__}: {error}"
            raise

    def _open_data(self) -> RunData:
        """The run's images and split."""
        try:
            return open_run_data(self.folder, self._data)
        except NPMatchError as error:
            raise NPMatchError(f"{error}; where the images have moved, start the page with --data DIR") from error

    def _describe(self, classifier: Classifier, images: Tensor) -> tuple[Prediction, Tensor]:
        """Predictions and features of uint8 images n C H W; one batch at a time, whoever asks."""
        with self._model:
            return describe_batch(classifier.model, images, classifier.spec, classifier.device)

    @property
    def labelling(self) -> Labelling:
        """The run's unlabelled images, or one line on why they are not there."""
        if self._labelling is None:
            raise NPMatchError(self.problem or "the images are not open yet; try again in a moment")
        return self._labelling

    def answer(self, content: bytes) -> dict[str, Any]:
        """What the model says of one image file."""
        classifier = self.classifier
        if classifier is None:
            raise NPMatchError(self.problem or "there is no model yet; wait until the run has finished")
        spec = classifier.spec
        image = decode_image(io.BytesIO(content), spec.stored_side, spec.channels, MAX_PIXELS)
        raw, features = self._describe(classifier, image[None])
        decisions = self._decider(raw, features)
        prediction = decisions.prediction
        probabilities, order = prediction.probs[0].topk(min(CLASSES_SHOWN, len(spec.class_names)))
        near = self.neighbours.nearest(features[0], NEIGHBOURS_SHOWN) if self.neighbours is not None else []
        return {
            "classes": [
                {"label": k, "probability": p} for k, p in zip(order.tolist(), probabilities.tolist(), strict=True)
            ],
            **uncertainty(float(prediction.entropy[0]), len(spec.class_names)),
            "disagreement": None if prediction.disagreement is None else float(prediction.disagreement[0]),
            "neighbours": [{"image": i, "label": k, "likeness": s} for i, k, s in near],
            "remarks": remarks(decisions, self._decider),
            "seen": png_data_uri(image),
            "crisp": is_crisp(image),
        }

    def picture(self, position: int) -> tuple[bytes, str]:
        """A training image, encoded, and its media type."""
        images = self.labelling.train.images
        if not 0 <= position < len(images):
            raise NPMatchError(f"image {position}: this run has the images 0 to {len(images) - 1}")
        return picture(images, position)

    def about(self) -> dict[str, Any]:
        """What does not change once the model is there."""
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
        """How far everything is; asked for every few seconds."""
        records = self._records()
        problem, counts = self.problem, None
        try:
            counts = self._labelling and self._labelling.counts()
        except NPMatchError as error:  # somebody has spoilt labels.csv
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
        """Whether the run is being trained, has stopped on the way, or has a model, opened or not yet."""
        if self.classifier is not None:
            return "ready"
        if self.run.is_finished():
            return "opening"
        return "training" if self.run.is_locked() else "stopped"

    def _records(self) -> list[dict[str, Any]]:
        """The log, read again only where it has grown."""
        version = self.figures.version()
        if self._log[0] != version:
            self._log = version, self.run.records()
        return self._log[1]
