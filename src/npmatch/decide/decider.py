"""Decisions a user asks for, computed batch by batch from predictions and features."""

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
    """The decisions a user asks for."""

    calibrate: bool = True  # whether probabilities are at the fitted temperature, if there is one
    abstain: float | None = None  # highest error rate among predictions that are not withheld
    confidence: float = CONFIDENCE  # probability with which the bound `abstain` must hold
    ood: bool = False  # whether to score how unlike the training images an image is
    ood_quantile: float = QUANTILE  # quantile of the training images' own scores; images above it are flagged
    coverage: float | None = None  # probability with which a prediction set contains the true class


@dataclass(frozen=True)
class Decisions:
    """Predictions of N images, and the decisions that were asked for; the others are None."""

    prediction: Prediction  # at the temperature
    temperature: float | None = None  # None: the probabilities are the model's own
    withheld: Tensor | None = None  # N, bool
    ood_score: Tensor | None = None  # N, float: distance from the training images
    ood: Tensor | None = None  # N, bool: whether the score is above the limit
    sets: Tensor | None = None  # N K, bool: the classes in each prediction set

    @staticmethod
    def cat(parts: Sequence[Decisions]) -> Decisions:
        """Decisions on consecutive batches as one."""

        def joined(tensors: list[Tensor | None]) -> Tensor | None:
            present = [tensor for tensor in tensors if tensor is not None]
            return torch.cat(present) if present else None

        return Decisions(
            Prediction.cat([part.prediction for part in parts]),
            parts[0].temperature,
            *(joined([getattr(part, name) for part in parts]) for name in ("withheld", "ood_score", "ood", "sets")),
        )


class Decider:
    """Turns predictions and features into decisions; impossible wishes are refused before the first image."""

    def __init__(self, calibration: Calibration | None, wishes: Wishes) -> None:
        """`calibration` is that of the model's run, or None if it has none."""
        self.calibration = calibration = calibration or Calibration()
        self.wishes = wishes
        self.temperature = calibration.temperature if wishes.calibrate else None
        self.abstention = None if wishes.abstain is None else calibration.abstention(wishes.abstain, wishes.confidence)
        self.sets = None if wishes.coverage is None else calibration.prediction_sets(wishes.coverage)
        self.novelty = calibration.novelty if wishes.ood else None
        if wishes.ood and self.novelty is None:
            raise NPMatchError(
                "ood: this run has no features of training images to compare with; npmatch calibrate RUN computes them"
            )
        self.limit = None if self.novelty is None else self.novelty.limit(wishes.ood_quantile)

    @property
    def warning(self) -> str | None:
        """A warning for the user if every prediction will be withheld, otherwise None."""
        if self.abstention is None or self.abstention.kept:
            return None
        a = self.abstention
        return (
            f"abstain={a.target}: every prediction is withheld, because even the most certain predictions of the {a.n} "
            f"held-out images are wrong too often to be {a.confidence:.0%} sure of an error below {a.target:.1%}; add "
            "labels to train on and to hold out, or choose a higher target"
        )

    def __call__(self, prediction: Prediction, features: Tensor) -> Decisions:
        """The decisions on N predictions with features N F."""
        score = None if self.novelty is None else self.novelty.score(features)
        return Decisions(
            prediction if self.temperature is None else self.calibration.apply(prediction),
            self.temperature,
            # Without temperature, which was fitted on the labels that the threshold and the sets are fitted on.
            None if self.abstention is None else self.abstention.withheld(prediction.entropy.double()),
            score,
            None if score is None or self.limit is None else score > self.limit,
            None if self.sets is None else self.sets(prediction.probs),
        )
