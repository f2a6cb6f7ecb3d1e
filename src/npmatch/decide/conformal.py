"""Split conformal prediction with the library crepes: sets that contain the true class with a stated probability.

The nonconformity score of a class is −log p, with the model's probabilities before temperature scaling: a temperature
fitted on the same labels would break the exchangeability that the guarantee assumes. p-values are not smoothed, so the
sets are deterministic.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npmatch.errors import NPMatchError


def fewest_for_sets(coverage: float) -> int:
    """Smallest number of held-out labels for a coverage; with fewer, every set would have to contain every class."""
    if not 0 < coverage < 1:
        raise NPMatchError(f"coverage={coverage}: give a number between 0 and 1, for example 0.9")
    return math.floor(1 / (1 - coverage) + 1e-9)


class PredictionSets:
    """A conformal classifier, fitted on held-out probabilities n K and labels n."""

    def __init__(self, probs: Tensor, y: Tensor, coverage: float) -> None:
        """Too few labels for the coverage, or a missing crepes, is an error."""
        fewest = fewest_for_sets(coverage)
        if len(y) < fewest:
            raise NPMatchError(
                f"coverage={coverage}: at least {fewest} held-out labels are needed, or every set would contain every "
                f"class; there are {len(y)}, so {fewest - len(y)} are missing"
            )
        self.coverage = coverage
        scores = _nonconformity(probs)[np.arange(len(y)), y.numpy()]
        self.classifier = _conformal_classifier().fit(scores)

    def __call__(self, probs: Tensor) -> Tensor:
        """Probabilities N K → N K bool: the classes in each image's set. The likeliest one is always among them."""
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
