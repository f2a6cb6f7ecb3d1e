"""An attentive process: an image attends to the context's images, and only their labels reach the decoder.

    g(x) = W (f(x) − f̄) / ‖·‖,    f̄ the mean feature of labelled images   the embedding, of keys and queries
    aᵢ(x) ∝ wᵢ exp(g(x) · g(xᵢ) / τ)                                      attention over the context
    r(x) = Σᵢ aᵢ(x) v(yᵢ)                                                 the image's own representation of it
    p(y | x) = softmax(decoder(r(x)))

After Kim et al., Attentive Neural Processes, ICLR 2019. Paper: keys and queries have weights of their own; here: they
share them, because attention that starts uniform learns nothing from forty labels. Paper: the decoder gets the target's
feature too, and a latent, and a value holds the point's feature; here: none of these, because a decoder that sees
features learns to do without the labels. The T samples are T resamplings of the context (Bayesian bootstrap,
wᵢ ~ Exp(1)).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.heads.context import Context, ContextHead, embedded


class AttentiveProcessHead(ContextHead):
    """p(y | feature, context) by attention over the context."""

    def __init__(
        self,
        num_features: int,  # F
        num_classes: int,  # K
        width: int,  # M, of all layers
        samples: int,  # T
        points: int,
        bandwidth: float,  # τ
    ) -> None:
        """A class has a value, a vector; the decoder has two layers."""
        super().__init__(num_features, num_classes, samples, points)
        self.embedding = nn.Linear(num_features, width, bias=False)
        self.value = nn.Embedding(num_classes, width)
        self.decoder = nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(0.1), nn.Linear(width, num_classes))
        self.bandwidth = bandwidth

    def log_probs(self, features: Tensor, context: Context, allowed: Tensor | None = None) -> Tensor:
        """Log-probabilities T n K of images n F."""
        query, key = (F.normalize(g, dim=-1) for g in embedded(self.embedding, features, context))
        mass = ((query @ key.T - 1) / self.bandwidth).exp()  # n N
        if allowed is not None:
            mass = mass * allowed
        value = self.value(context.y)  # N M
        # One product for all T: the weighted values, and the weights by which they are divided.
        rows = torch.cat([value, torch.ones_like(value[:, :1])], -1)  # N M+1
        weighted = (context.weights.T[:, :, None] * rows[:, None]).flatten(1)  # N T(M+1)
        sums = (mass @ weighted).view(-1, len(context.weights), rows.shape[-1])  # n T M+1
        r = sums[..., :-1] / sums[..., -1:].clamp(min=torch.finfo(sums.dtype).tiny)
        log_probs: Tensor = self.decoder(r).log_softmax(-1).transpose(0, 1)
        return log_probs
