"""Temperature scaling: one number T, fitted on held-out labels, that corrects over- and underconfidence.

p_T = p^(1/T) / Σ p^(1/T). For a model that averages samples, p is the average. T > 1 lowers the confidence; the
likeliest class stays the same.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from npmatch.types import Prediction

MIN_LABELS = 20  # held-out labels; a temperature fitted on fewer would be mostly noise
BOUNDS = (0.05, 20.0)  # of 1/T


def fit_temperature(probs: Tensor, y: Tensor) -> float:
    """The T with the smallest negative log-likelihood of labels y, n, under probs n K; 1 if no prediction is wrong."""
    from scipy.optimize import minimize_scalar

    if bool((probs.argmax(-1) == y).all()):
        return 1.0  # the likelihood has no maximum: it grows as T falls to 0
    log_p = _log(probs)

    def loss(inverse: float) -> float:
        return float(torch.nn.functional.cross_entropy(inverse * log_p, y))

    # The loss is convex in 1/T, so a local minimum is the global one.
    optimum = minimize_scalar(loss, bounds=BOUNDS, method="bounded", options={"xatol": 1e-6})
    return float(1 / optimum.x)


def tempered(prediction: Prediction, temperature: float) -> Prediction:
    """The prediction at a temperature; disagreement between samples and outlier probability are left as they are."""
    p = (_log(prediction.probs) / temperature).softmax(-1)
    entropy = torch.special.entr(p).sum(-1)
    return replace(prediction, probs=p.to(prediction.probs.dtype), entropy=entropy.to(prediction.entropy.dtype))


def _log(probs: Tensor) -> Tensor:
    return probs.double().clamp_min(torch.finfo(torch.float64).tiny).log()
