"""The losses that several algorithms share: pure functions, masked rather than row-selected."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def entropy(probs: Tensor) -> Tensor:
    """H(p) = −Σ p log p in nats over the last dimension, [...]; 0·log 0 is 0 and its gradient finite."""
    tiny = torch.finfo(probs.dtype).tiny
    return -(probs * probs.clamp(min=tiny).log()).sum(-1)


def masked_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Σ w·v / Σ w over the first dimension, [...]; 0 when every weight is 0."""
    weight = weight.to(values.dtype)
    total = (weight.view(-1, *[1] * (values.dim() - 1)) * values).sum(0)
    return total / weight.sum().clamp(min=1e-12)


def cross_entropy_samples(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over T of the cross-entropy of each sample's prediction: logits T n K, y n → n (never CE of the mean)."""
    samples, n, classes = logits.shape
    flat = F.cross_entropy(logits.reshape(samples * n, classes), y.repeat(samples), reduction="none")
    return flat.view(samples, n).mean(0)
