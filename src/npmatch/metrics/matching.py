"""The check that labels fit a prediction, which every metric makes first."""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.errors import NPMatchError
from npmatch.types import Prediction


def matched(prediction: Prediction, y: Tensor) -> Tensor:
    """The labels as N int64 on the prediction's device; raises an NPMatchError where the two do not fit."""
    probs, entropy = prediction.probs, prediction.entropy
    if probs.ndim != 2 or probs.shape[1] < 2:
        raise NPMatchError(f"probabilities must be N × K with K ≥ 2, not {tuple(probs.shape)}")
    n, num_classes = probs.shape
    if n == 0:
        raise NPMatchError("nothing to measure: the prediction holds no image")
    if y.shape != (n,) or entropy.shape != (n,):
        raise NPMatchError(
            f"{n} predictions need {n} labels and {n} entropies, "
            f"not labels of shape {tuple(y.shape)} and entropies of shape {tuple(entropy.shape)}"
        )
    if y.is_floating_point() or y.is_complex():
        raise NPMatchError(f"labels must be integers, not {y.dtype}")
    if int(y.min()) < 0 or int(y.max()) >= num_classes:
        raise NPMatchError(
            f"labels must lie in 0…{num_classes - 1}, these span {int(y.min())}…{int(y.max())} "
            "(−1 means unlabelled: leave such images out of a measurement)"
        )
    # argmax would choose a NaN, and the error rate would look plausible.
    if not bool(torch.isfinite(probs).all() & torch.isfinite(entropy).all()):
        raise NPMatchError("the model's predictions are not finite: it diverged in training")
    return y.to(device=probs.device, dtype=torch.int64)
