"""How well images that belong to no class are told from the others."""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.types import Prediction


def outlier_auroc(known: Prediction, foreign: Prediction) -> float:
    """AUROC in %: how often a foreign image has a higher outlier score than a known one; equal scores count half.

    The score is the outlier probability, or the entropy of a prediction that has none.
    """
    of_known = _outlier_scores(known).sort().values
    of_foreign = _outlier_scores(foreign)
    lower, not_higher = (torch.searchsorted(of_known, of_foreign, right=right) for right in (False, True))
    return 100 * float((lower + not_higher).double().mean()) / (2 * len(of_known))


def _outlier_scores(prediction: Prediction) -> Tensor:
    return prediction.entropy if prediction.outlier is None else prediction.outlier
