"""How well a score tells some images from others, such as those that belong to no class from the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.types import Prediction


def outlier_auroc(known: Prediction, foreign: Prediction) -> float:
    """AUROC in %: how often a foreign image has a higher outlier score than a known one; equal scores count half.

    The score is the outlier probability, or the entropy of a prediction that has none.
    """
    return auroc(_outlier_scores(known), _outlier_scores(foreign))


def auroc(low: Tensor, high: Tensor) -> float:
    """AUROC in %: how often one of the scores `high` n exceeds one of the scores `low` m; equal scores count half."""
    ordered = low.sort().values
    below, not_above = (torch.searchsorted(ordered, high, right=right) for right in (False, True))
    return 100 * float((below + not_above).double().mean()) / (2 * len(ordered))


def _outlier_scores(prediction: Prediction) -> Tensor:
    return prediction.entropy if prediction.outlier is None else prediction.outlier
