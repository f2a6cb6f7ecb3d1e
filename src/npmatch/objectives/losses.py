"""The losses that several algorithms share: pure functions, masked rather than row-selected."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch.types import Prediction


def entropy(probs: Tensor) -> Tensor:
    """H(p) = −Σ p log p in nats over the last dimension, [...]; 0·log 0 is 0 and its gradient finite."""
    tiny = torch.finfo(probs.dtype).tiny
    return -(probs * probs.clamp(min=tiny).log()).sum(-1)


def mean_prediction(samples: Tensor) -> Prediction:
    """The average of T predictions T n K, its entropy, and the samples' disagreement about it."""
    probs = samples.mean(0)
    u = entropy(probs)
    return Prediction(probs, u, (u - entropy(samples).mean(0)).clamp(min=0))


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


def one_hot(y: Tensor, num_classes: int) -> Tensor:
    """Labels n → n K of zeros and ones; unlike F.one_hot it does not read the labels back to the host."""
    return (y[:, None] == torch.arange(num_classes, device=y.device)).float()


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """p ← normalise(p^{1/T}) over the last dimension: T < 1 raises the probability of the likeliest class."""
    powered = (probs / probs.amax(-1, keepdim=True)) ** (1 / temperature)  # at least one is 1: no 0/0 at small T
    return powered / powered.sum(-1, keepdim=True)


def mixup(x: Tensor, targets: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """MixMatch's MixUp of n images and targets n K with a shuffle of themselves; every pair draws its own λ.

    λ ~ Beta(α, α) and λ' = max(λ, 1 − λ): row i of the result is closer to row i of `x` than to its partner.
    """
    concentration = torch.full_like(targets[:, 0], alpha)
    ratio = torch.distributions.Beta(concentration, concentration, validate_args=False).sample()
    ratio = torch.maximum(ratio, 1 - ratio)[:, None]
    partner = torch.rand_like(targets[:, 0]).argsort()  # a shuffle without a copy to the host
    ratio_x = ratio.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)
    mixed_x = ratio_x * x + (1 - ratio_x) * x[partner]
    return mixed_x, ratio * targets + (1 - ratio) * targets[partner]


def ramp_up(progress: Tensor, share: float) -> Tensor:
    """A weight that grows linearly from 0 to 1 over the first `share` of training, 0-d; 1 throughout for share 0."""
    return (progress / share).clamp(max=1) if share > 0 else torch.ones_like(progress)


# The sign is that of TorchSSL and USB. The paper writes the same quantity as −H(target, N(p̄ / h̄)) (from memory).
def fairness_loss(logits_strong: Tensor, keep: Tensor, target: Tensor) -> Tensor:
    """FreeMatch's Σ_c target_c · log N(p̄ / h̄)_c over the trusted of logits U K, 0-d; 0 where none is trusted.

    p̄ is their mean prediction and h̄ the histogram of their classes. The gradient goes through p̄ alone.
    """
    p = logits_strong.softmax(-1)
    p_mean = masked_mean(p, keep)  # p̄
    histogram = masked_mean(one_hot(p.argmax(-1), p.shape[-1]), keep)  # h̄
    return (target * (per_prediction(p_mean, histogram) + 1e-12).log()).sum() * keep.any()


def per_prediction(probs: Tensor, histogram: Tensor) -> Tensor:
    """K: N(p / h), the probability of a class per image predicted to be of it; 0 for a class without such images."""
    ratio = torch.where(histogram > 0, probs / histogram.clamp(min=1e-12), 0.0)
    return ratio / ratio.sum().clamp(min=1e-12)
