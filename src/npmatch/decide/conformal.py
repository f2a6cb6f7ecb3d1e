"""Prediction sets that hold the true class with a stated probability, through the library crepes.

The nonconformity of a class is −log p, of the model's own probabilities: a temperature fitted on the same labels would
break the exchangeability the guarantee rests on. p-values are not smoothed, so nothing is drawn at random.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npmatch.errors import NPMatchError


def fewest_for_sets(coverage: float) -> int:
    """The held-out labels below which every set would have to hold every class; fails where that is no coverage."""
    if not 0 < coverage < 1:
        raise NPMatchError(f"coverage={coverage}: give a number between 0 and 1, for example 0.9")
    return math.floor(1 / (1 - coverage) + 1e-9)


class PredictionSets:
    """Fitted on held-out probabilities n K and labels n; probabilities N K in, N K bool out."""

    def __init__(self, probs: Tensor, y: Tensor, coverage: float) -> None:
        """Fails where there are too few labels for the coverage, or the library is not there."""
        fewest = fewest_for_sets(coverage)
        if len(y) < fewest:
            raise NPMatchError(
                f"coverage={coverage}: at least {fewest} held-out labels are needed, or every set would hold every "
                f"class; there are {len(y)}, so {fewest - len(y)} are missing"
            )
        self.coverage = coverage
        scores = _nonconformity(probs)[np.arange(len(y)), y.numpy()]
        self.classifier = _conformal_classifier().fit(scores)

    def __call__(self, probs: Tensor) -> Tensor:
        """Which classes belong to each image's set; the likeliest always does, so that no set is empty."""
        members = self.classifier.predict_set(_nonconformity(probs), confidence=self.coverage, smoothing=False)
        sets = torch.from_numpy(np.asarray(members)).bool().view(probs.shape)
        return sets.scatter(1, probs.argmax(-1, keepdim=True), True)


def _nonconformity(probs: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return -probs.double().clamp_min(torch.finfo(torch.float64).tiny).log().numpy()


def _conformal_classifier() -> Any:
    try:
        from crepes import ConformalClassifier
    except ImportError as error:
        raise NPMatchError("coverage: needs the library crepes; pip install 'npmatch[conformal]'") from error
    return ConformalClassifier()
