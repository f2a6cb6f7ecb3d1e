"""What a run keeps for later decisions: its answers for held-out images, their labels, and training features."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from npmatch.decide.abstention import CONFIDENCE, TARGETS, Abstention, check_target, choose_threshold, fewest_labels
from npmatch.decide.conformal import PredictionSets, fewest_for_sets
from npmatch.decide.novelty import MOST, NEIGHBOURS, QUANTILE, Novelty
from npmatch.decide.temperature import FEWEST, fit_temperature, tempered
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.training.checkpoint import load_tensors, save_tensors
from npmatch.types import Prediction

FORMAT = 1
TENSORS, SUMMARY = "calibration.safetensors", "calibration.json"


@dataclass(frozen=True)
class Calibration:
    """Fitted on labels that were neither trained on nor tested on, nor given by a model."""

    held_out: Prediction | None = None  # of n images
    y: Tensor | None = None  # n, int64
    temperature: float | None = None  # None where there are too few labels to fit one
    novelty: Novelty | None = None
    source: str = ""  # where the labels are from: data.validation or --labeled

    @staticmethod
    def fit(held_out: Prediction | None, y: Tensor | None, novelty: Novelty | None, source: str = "") -> Calibration:
        """From what the model says of held-out images, and their labels."""
        if held_out is None or y is None or not len(y):
            return Calibration(novelty=novelty)
        temperature = fit_temperature(held_out.probs, y) if len(y) >= FEWEST else None
        return Calibration(held_out, y, temperature, novelty, source)

    @property
    def n(self) -> int:
        """How many labels were held out."""
        return 0 if self.y is None else len(self.y)

    def apply(self, prediction: Prediction) -> Prediction:
        """The prediction at the fitted temperature; as it is where none was fitted."""
        return prediction if self.temperature is None else tempered(prediction, self.temperature)

    def abstention(self, target: float, confidence: float = CONFIDENCE) -> Abstention:
        """The threshold that keeps the error below the target; fails where there are too few labels."""
        check_target(target, confidence)
        if self.held_out is None or self.y is None:
            raise _no_labels(f"abstain={target}", fewest_labels(target, confidence))
        return choose_threshold(self.held_out.entropy, self.held_out.label != self.y, target, confidence)

    def prediction_sets(self, coverage: float) -> PredictionSets:
        """Sets that hold the true class with that probability; fails where there are too few labels."""
        if self.held_out is None or self.y is None:
            raise _no_labels(f"coverage={coverage}", fewest_for_sets(coverage))
        return PredictionSets(self.held_out.probs, self.y, coverage)

    def save(self, folder: Path) -> None:
        """calibration.safetensors, which is all that is read again, and calibration.json for people."""
        tensors: dict[str, Tensor] = {}
        if self.novelty is not None:
            tensors |= {f"novelty/{name}": tensor for name, tensor in self.novelty.tensors().items()}
        if self.held_out is not None and self.y is not None:
            tensors |= {"probs": self.held_out.probs, "entropy": self.held_out.entropy, "labels": self.y}
        scalars = {"format": FORMAT, "temperature": self.temperature, "source": self.source}
        save_tensors(folder / TENSORS, tensors, scalars)
        write_atomically(folder / SUMMARY, (json.dumps(self.summary(), indent=2) + "\n").encode())

    @staticmethod
    def remove(folder: Path) -> None:
        """Takes away what `save` wrote."""
        for name in (TENSORS, SUMMARY):
            (folder / name).unlink(missing_ok=True)

    @staticmethod
    def load(folder: Path, num_classes: int | None = None) -> Calibration | None:
        """What `save` wrote, for a model of `num_classes` where they are known; nothing where there is none."""
        path = folder / TENSORS
        if not path.exists():
            return None
        try:
            tensors, scalars = load_tensors(path)
        except NPMatchError as error:
            raise NPMatchError(f"{error}; npmatch calibrate writes it anew") from error
        if scalars.get("format") != FORMAT:
            raise NPMatchError(f"{path}: written by another version of npmatch; npmatch calibrate writes it anew")
        parts = {name.removeprefix("novelty/"): t for name, t in tensors.items() if name.startswith("novelty/")}
        try:
            held_out = Prediction(tensors["probs"], tensors["entropy"]) if "probs" in tensors else None
            novelty = Novelty(**parts) if parts else None
            found = Calibration(held_out, tensors.get("labels"), scalars["temperature"], novelty, scalars["source"])
            fits = found._fits()
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits:
            raise NPMatchError(f"{path}: its parts do not belong together; npmatch calibrate writes it anew")
        if held_out is not None and num_classes not in (None, held_out.probs.shape[1]):
            raise NPMatchError(f"{path}: of a model with other classes; npmatch calibrate writes it anew")
        return found

    def _fits(self) -> bool:
        """Whether the parts are of equal length: the file may be anybody's."""
        known, held, t = self.novelty, self.held_out, self.temperature
        if known is not None:
            (images, features), lengths = known.features.shape, [known.mean.shape, known.scale.shape]
            if lengths != [(features,), (features,)] or known.own.shape != (images,):
                return False
        if held is not None:
            (n, classes), y = held.probs.shape, self.y
            if y is None or [y.shape, held.entropy.shape] != [(n,), (n,)] or not ((y >= 0) & (y < classes)).all():
                return False
        return t is None or (isinstance(t, float) and t > 0)

    def summary(self) -> dict[str, Any]:
        """In a few numbers."""
        held: dict[str, Any] = {"labels": self.n}
        if self.held_out is not None and self.y is not None:
            wrong = self.held_out.label != self.y
            held |= {"source": self.source, "errors": int(wrong.sum())}
            known_targets = [target for target in TARGETS if self.n >= fewest_labels(target)]
            chosen = [asdict(self.abstention(target)) for target in known_targets]
            held["abstention"] = [{**row, "threshold": min(row["threshold"], 1e9)} for row in chosen]  # JSON has no inf
        known = self.novelty
        ood = known and {
            "images": len(known.features),
            "at_most": MOST,
            "neighbour": NEIGHBOURS,
            "quantile": QUANTILE,
            "limit": known.limit(),
        }
        return {"format": FORMAT, "temperature": self.temperature, "held_out": held, "ood": ood}


def _no_labels(wish: str, fewest: int) -> NPMatchError:
    return NPMatchError(
        f"{wish}: needs at least {fewest} held-out labels, and this run has none, so {fewest} are missing; train with "
        f"data.validation={max(fewest, 2)} or more, or give some with: npmatch calibrate RUN --labeled DIR"
    )
