"""What a user wishes to know of predictions, worked out batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from npmatch.decide.abstention import CONFIDENCE
from npmatch.decide.calibration import Calibration
from npmatch.decide.novelty import QUANTILE
from npmatch.errors import NPMatchError
from npmatch.types import Prediction


@dataclass(frozen=True)
class Wishes:
    """What to decide, and how."""

    calibrate: bool = True  # probabilities at the fitted temperature, where there is one
    abstain: float | None = None  # the highest error rate among predictions that are not withheld
    confidence: float = CONFIDENCE  # that it holds
    ood: bool = False  # a score for images unlike anything seen
    ood_quantile: float = QUANTILE  # of the training images' own scores, above which an image is flagged
    coverage: float | None = None  # of prediction sets


@dataclass(frozen=True)
class Decisions:
    """Predictions of N images and what follows from them; None where it was not asked for."""

    prediction: Prediction  # at the temperature
    temperature: float | None = None  # None: the model's own probabilities
    withheld: Tensor | None = None  # N, bool
    ood_score: Tensor | None = None  # N, float
    ood: Tensor | None = None  # N, bool
    sets: Tensor | None = None  # N K, bool

    @staticmethod
    def cat(parts: Sequence[Decisions]) -> Decisions:
        """Decisions on consecutive batches as one."""

        def joined(tensors: list[Tensor | None]) -> Tensor | None:
            known = [tensor for tensor in tensors if tensor is not None]
            return torch.cat(known) if known else None

        return Decisions(
            Prediction.cat([part.prediction for part in parts]),
            parts[0].temperature,
            *(joined([getattr(part, name) for part in parts]) for name in ("withheld", "ood_score", "ood", "sets")),
        )


class Decider:
    """Predictions and features in, decisions out; what cannot be done is refused before the first image."""

    def __init__(self, calibration: Calibration | None, wishes: Wishes) -> None:
        """`calibration` is the run's own; None where it has none."""
        known = calibration or Calibration()
        self.temperature = known.temperature if wishes.calibrate else None
        self.calibration = known
        self.abstention = None if wishes.abstain is None else known.abstention(wishes.abstain, wishes.confidence)
        self.sets = None if wishes.coverage is None else known.prediction_sets(wishes.coverage)
        self.novelty = known.novelty if wishes.ood else None
        if wishes.ood and self.novelty is None:
            raise NPMatchError(
                "ood: this run was trained without reference features; npmatch calibrate RUN makes them from its data"
            )
        self.limit = None if self.novelty is None else self.novelty.limit(wishes.ood_quantile)

    @property
    def warning(self) -> str | None:
        """What a user should know before relying on the result."""
        if self.abstention is None or self.abstention.kept:
            return None
        a = self.abstention
        return (
            f"abstain={a.target}: every prediction is withheld, as the surest of the {a.n} held-out images are wrong "
            f"too often to be {a.confidence:.0%} sure of an error below {a.target:.1%}; more labels, to train on and "
            "to hold out, or a higher target would help"
        )

    def __call__(self, prediction: Prediction, features: Tensor) -> Decisions:
        """What follows from N predictions and features N F."""
        score = None if self.novelty is None else self.novelty.score(features)
        return Decisions(
            prediction if self.temperature is None else self.calibration.apply(prediction),
            self.temperature,
            # The model's own uncertainty and probabilities: those at the temperature have seen the same labels.
            None if self.abstention is None else self.abstention.withheld(prediction.entropy.double()),
            score,
            None if score is None or self.limit is None else score > self.limit,
            None if self.sets is None else self.sets(prediction.probs),
        )
