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

from npmatch.heads.context import Context, ContextHead, FrozenProcess, RowsOfClasses, centre_of, embedded
from npmatch.objectives.losses import mean_prediction, one_hot
from npmatch.types import Prediction


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
        # A value is of a class, so what an image attends to is known from the attention that each class gets.
        of_class = one_hot(context.y, self.num_classes).to(mass.dtype)  # N K
        weighted = (context.weights.T[:, :, None] * of_class[:, None]).flatten(1)  # N TK
        attention = (mass @ weighted).view(-1, len(context.weights), self.num_classes)  # n T K
        attention = attention / attention.sum(-1, keepdim=True).clamp(min=torch.finfo(mass.dtype).tiny)
        r = attention @ self.value.weight  # n T M
        log_probs: Tensor = self.decoder(r).log_softmax(-1).transpose(0, 1)
        return log_probs

    def frozen_process(self) -> FrozenAttentiveProcess:
        """The process with its present weights and context."""
        return FrozenAttentiveProcess(self)


class FrozenAttentiveProcess(FrozenProcess):
    """The same with the values in the decoder's first layer, whose input is then the attention that each class gets."""

    centre: Tensor  # F
    weight: Tensor  # M F, of the embedding
    keys: Tensor  # KP M: g(xᵢ) / τ
    offset: Tensor  # KP: −1 / τ
    decoder_weight: Tensor  # M K
    decoder_bias: Tensor  # M
    classifier_weight: Tensor  # K M
    classifier_bias: Tensor  # K

    def __init__(self, head: AttentiveProcessHead) -> None:
        """Takes over the head's weights and context."""
        super().__init__()
        context = head.context()
        centre = centre_of(context)
        rows = RowsOfClasses(context.y, head.num_classes)
        keys = rows(F.normalize(head.embedding(context.features - centre), dim=-1)).flatten(0, 1) / head.bandwidth
        first, last = (layer for layer in head.decoder if isinstance(layer, nn.Linear))
        self.hold(
            centre=centre,
            weight=head.embedding.weight.detach(),
            keys=keys,
            offset=torch.full_like(keys[:, 0], -1 / head.bandwidth),
            resampled=rows(context.weights.T),
            decoder_weight=first.weight @ head.value.weight.T,
            decoder_bias=first.bias.detach(),
            classifier_weight=last.weight.detach(),
            classifier_bias=last.bias.detach(),
        )

    def forward(self, features: Tensor) -> Prediction:
        """As every process; uniform without a context."""
        classes, points, samples = self.resampled.shape
        if not points:
            return mean_prediction(features.new_full((samples, len(features), classes), 1 / classes))
        query = F.normalize(F.linear(features - self.centre, self.weight), dim=-1)
        attention = self.sum_by_class(F.linear(query, self.keys, self.offset).exp_())  # K n T
        attention = attention / attention.sum(0).clamp(min=torch.finfo(attention.dtype).tiny)
        hidden = F.leaky_relu(F.linear(attention.flatten(1).T, self.decoder_weight, self.decoder_bias), 0.1)  # nT M
        probs = F.linear(hidden, self.classifier_weight, self.classifier_bias).softmax(-1)
        return mean_prediction(probs.view(-1, samples, classes).transpose(0, 1))
