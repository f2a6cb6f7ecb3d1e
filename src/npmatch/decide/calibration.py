"""Calibration of a trained model on held-out labels: the temperature, abstention thresholds, conformal prediction sets.

A run stores its predictions of the held-out images with their labels, so that thresholds and sets for any target can
be computed later, and features of training images for the OOD score.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from npmatch.decide.abstention import CONFIDENCE, TARGETS, Abstention, check_target, choose_threshold, fewest_labels
from npmatch.decide.conformal import PredictionSets, fewest_for_sets
from npmatch.decide.novelty import MAX_IMAGES, NEIGHBOURS, QUANTILE, Novelty
from npmatch.decide.temperature import MIN_LABELS, fit_temperature, tempered
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.training.checkpoint import checksum_of, load_tensors, save_tensors
from npmatch.types import Prediction

FORMAT = 1
TENSORS, SUMMARY = "calibration.safetensors", "calibration.json"


@dataclass(frozen=True)
class Calibration:
    """The fitted temperature, and what thresholds and prediction sets are computed from.

    Held-out labels are neither training nor test labels, and never pseudo-labels.
    """

    held_out: Prediction | None = None  # of n held-out images, without temperature
    y: Tensor | None = None  # n, int64: their labels
    temperature: float | None = None  # None if there are too few labels to fit one
    novelty: Novelty | None = None
    source: str = ""  # where the labels are from: data.validation or --labeled

    @staticmethod
    def fit(held_out: Prediction | None, y: Tensor | None, novelty: Novelty | None, source: str = "") -> Calibration:
        """The calibration from a model's prediction of n held-out images and their labels y, if there are any."""
        if held_out is None or y is None or not len(y):
            return Calibration(novelty=novelty)
        temperature = fit_temperature(held_out.probs, y) if len(y) >= MIN_LABELS else None
        return Calibration(held_out, y, temperature, novelty, source)

    @property
    def n(self) -> int:
        """Number of held-out labels."""
        return 0 if self.y is None else len(self.y)

    def apply(self, prediction: Prediction) -> Prediction:
        """The prediction at the fitted temperature; unchanged if none was fitted."""
        return prediction if self.temperature is None else tempered(prediction, self.temperature)

    def abstention(self, target: float, confidence: float = CONFIDENCE) -> Abstention:
        """The threshold that keeps the error rate below `target`; too few labels are an error."""
        check_target(target, confidence)
        if self.held_out is None or self.y is None:
            raise _no_labels(f"abstain={target}", fewest_labels(target, confidence))
        return choose_threshold(self.held_out.entropy, self.held_out.label != self.y, target, confidence)

    def prediction_sets(self, coverage: float) -> PredictionSets:
        """Prediction sets that contain the true class with probability `coverage`; too few labels are an error."""
        if self.held_out is None or self.y is None:
            raise _no_labels(f"coverage={coverage}", fewest_for_sets(coverage))
        return PredictionSets(self.held_out.probs, self.y, coverage)

    def save(self, folder: Path, model: str | None = None) -> None:
        """Writes calibration.safetensors, which `load` reads, and calibration.json, a summary for people.

        `model` is the checksum of the weights it was fitted for; `load` refuses it for others.
        """
        tensors: dict[str, Tensor] = {}
        if self.novelty is not None:
            tensors |= {f"novelty/{name}": tensor for name, tensor in self.novelty.tensors().items()}
        if self.held_out is not None and self.y is not None:
            tensors |= {"probs": self.held_out.probs, "entropy": self.held_out.entropy, "labels": self.y}
        scalars = {"format": FORMAT, "temperature": self.temperature, "source": self.source}
        scalars |= {} if model is None else {"model": model}
        save_tensors(folder / TENSORS, tensors, scalars)
        write_atomically(folder / SUMMARY, (json.dumps(self.summary(), indent=2) + "\n").encode())

    @staticmethod
    def remove(folder: Path) -> None:
        """Deletes the files that `save` writes."""
        for name in (TENSORS, SUMMARY):
            (folder / name).unlink(missing_ok=True)

    @staticmethod
    def load(folder: Path, num_classes: int | None = None, weights: Path | None = None) -> Calibration | None:
        """The calibration that `save` wrote, or None if there is none.

        If given, `num_classes` and the checksum of the file `weights` are compared with the calibration's own.
        """
        path = folder / TENSORS
        if not path.exists():
            return None
        try:
            tensors, scalars = load_tensors(path)
        except NPMatchError as error:
            raise NPMatchError(f"{error}; npmatch calibrate writes it again") from error
        if scalars.get("format") != FORMAT:
            raise NPMatchError(f"{path}: written by another version of npmatch; npmatch calibrate writes it again")
        # Version 0.1.0 did not write the checksum.
        if weights is not None and scalars.get("model") not in (None, checksum_of(weights)):
            raise NPMatchError(
                f"{path}: was fitted for other weights than those beside it; npmatch calibrate writes it again"
            )
        parts = {name.removeprefix("novelty/"): t for name, t in tensors.items() if name.startswith("novelty/")}
        try:
            held_out = Prediction(tensors["probs"], tensors["entropy"]) if "probs" in tensors else None
            novelty = Novelty(**parts) if parts else None
            loaded = Calibration(held_out, tensors.get("labels"), scalars["temperature"], novelty, scalars["source"])
            is_consistent = loaded._is_consistent()
        except (KeyError, TypeError, ValueError):
            is_consistent = False
        if not is_consistent:
            raise NPMatchError(f"{path}: its contents do not fit together; npmatch calibrate writes it again")
        if held_out is not None and num_classes not in (None, held_out.probs.shape[1]):
            raise NPMatchError(f"{path}: belongs to a model with other classes; npmatch calibrate writes it again")
        return loaded

    def _is_consistent(self) -> bool:
        """Whether shapes and values fit together; the file may come from anyone."""
        novelty, held_out, y, t = self.novelty, self.held_out, self.y, self.temperature
        if novelty is not None:
            n, f = novelty.features.shape
            if [novelty.mean.shape, novelty.scale.shape, novelty.own.shape] != [(f,), (f,), (n,)]:
                return False
        if held_out is not None:
            n, k = held_out.probs.shape
            if y is None or [y.shape, held_out.entropy.shape] != [(n,), (n,)] or not ((y >= 0) & (y < k)).all():
                return False
        return t is None or (isinstance(t, float) and t > 0)

    def summary(self) -> dict[str, Any]:
        """The content of calibration.json: temperature, thresholds at usual targets, and the limit of the OOD score."""
        held_out: dict[str, Any] = {"labels": self.n}
        if self.held_out is not None and self.y is not None:
            wrong = self.held_out.label != self.y
            held_out |= {"source": self.source, "errors": int(wrong.sum())}
            rows = [asdict(self.abstention(target)) for target in TARGETS if self.n >= fewest_labels(target)]
            held_out["abstention"] = [
                {**row, "threshold": min(row["threshold"], 1e9)} for row in rows
            ]  # no inf in JSON
        ood = self.novelty and {
            "images": len(self.novelty.features),
            "at_most": MAX_IMAGES,
            "neighbour": NEIGHBOURS,
            "quantile": QUANTILE,
            "limit": self.novelty.limit(),
        }
        return {"format": FORMAT, "temperature": self.temperature, "held_out": held_out, "ood": ood}


def _no_labels(option: str, fewest: int) -> NPMatchError:
    return NPMatchError(
        f"{option}: needs at least {fewest} held-out labels, and this run has none, so {fewest} are missing; train "
        f"with data.validation={max(fewest, 2)} or more, or give some with: npmatch calibrate RUN --labeled DIR"
    )
