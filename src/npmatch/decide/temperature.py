"""Temperature scaling: one number that makes probabilities as bold as held-out labels say they may be.

p_T = p^(1/T) / Σ p^(1/T). For a model that averages samples p is the average. T > 1 tempers an overconfident model; the
likeliest class stays what it was.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.types import Prediction

FEWEST = 20  # held-out labels, below which a temperature would be little but noise
BOUNDS = (0.05, 20.0)  # of 1/T


def fit_temperature(probs: Tensor, y: Tensor) -> float:
    """The T of least negative log-likelihood on probs n K with labels y; 1 where no prediction is wrong."""
    from scipy.optimize import minimize_scalar

    if bool((probs.argmax(-1) == y).all()):
        return 1.0  # the likelihood has no optimum: it would grow for ever as T falls to 0
    log_p = _log(probs)

    def loss(inverse: float) -> float:
        return float(torch.nn.functional.cross_entropy(inverse * log_p, y))

    # Convex in 1/T, so that the one minimum found is the only one.
    found = minimize_scalar(loss, bounds=BOUNDS, method="bounded", options={"xatol": 1e-6})
    return float(1 / found.x)


def tempered(prediction: Prediction, temperature: float) -> Prediction:
    """The prediction at a temperature; the samples' disagreement stays that of the model."""
    p = (_log(prediction.probs) / temperature).softmax(-1)
    entropy = torch.special.entr(p).sum(-1)
    return Prediction(p.to(prediction.probs.dtype), entropy.to(prediction.entropy.dtype), prediction.disagreement)


def _log(probs: Tensor) -> Tensor:
    return probs.double().clamp_min(torch.finfo(torch.float64).tiny).log()
