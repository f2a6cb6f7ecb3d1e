"""A kernel process: the evidence for a class is the kernel mass of its images around the image.

    g(x) = W (f(x) − f̄) / ρ,    f̄ the mean feature of labelled images                  the embedding
    k(x, i) = exp(−‖g(x) − g(xᵢ)‖² / 2τ)                                                the kernel, at most 1
    e_c(x) = Σ_{i ∈ L_c} wᵢ k(x, i) / |L_c| + Σ_{i ∈ U_c} wᵢ k(x, i) / |U_c|            evidence for class c
    p(y = c | x) = (1 + s e_c(x)) / Σ_j (1 + s e_j(x))                                  mean of a Dirichlet
    v(x) = K / (K + s Σ_j e'_j(x)),    e' the same with k³ and every wᵢ 1               the vacuity

L_c are the labelled images of class c and U_c the unlabelled ones whose pseudo-label c is trusted. Each set is averaged
by itself, so that four labels weigh as much as hundreds of pseudo-labels. ρ is the root mean square of ‖W (f(xᵢ) − f̄)‖
over the labelled images, so that τ has a meaning whatever the features' size. The embedding is not normalised to the
sphere, on which an image far away would lie beside the labelled ones in the same direction. The kernel is not
normalised either: far from all labelled images every e_c is 0 and the prediction uniform, while a softmax over
distances would sum to one there too.

The vacuity is the share of a prediction that comes from the prior and not from any image. It tells images of no known
class from those between two known ones: both have a high entropy, but the latter have evidence. Known images lie close
to some others, so a kernel narrower than the one that tells classes apart, k³, tells them better from strange ones.

The T samples are T resamplings of the context (Bayesian bootstrap, wᵢ ~ Exp(1)): where they disagree, few labels leave
the class open.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from npmatch.heads.context import Context, ContextHead, embedded
from npmatch.objectives.losses import masked_mean, mean_prediction, one_hot
from npmatch.types import Prediction

# The kernel's power in the vacuity. Chosen on Fashion-MNIST, seeds 10 and 11: with 1, MNIST's digits get small values.
NARROWER = 3


class KernelProcessHead(ContextHead):
    """p(y | feature, context) by a kernel on the embedding."""

    def __init__(
        self,
        num_features: int,  # F
        num_classes: int,  # K
        width: int,  # M, of the embedding
        samples: int,  # T
        points: int,
        scale: float,  # s: evidence of an image that is one with a labelled one, in units of the uniform prior
        bandwidth: float,  # τ
    ) -> None:
        """The embedding is linear, so that distances between features are kept but for directions that do not help."""
        super().__init__(num_features, num_classes, samples, points)
        self.embedding = nn.Linear(num_features, width, bias=False)
        self.scale, self.bandwidth = scale, bandwidth

    def compare(self, features: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """The kernel n N between images n F and those of a context, and which of the sets N 2K each of these is in."""
        g, g_context = embedded(self.embedding, features, context)
        size = masked_mean(g_context.square().sum(-1), ~context.trusted).clamp(min=torch.finfo(g.dtype).tiny)  # ρ²
        distance = (g.square().sum(-1, keepdim=True) + g_context.square().sum(-1) - 2 * g @ g_context.T) / size
        kernel = (-distance.clamp(min=0) / (2 * self.bandwidth)).exp()
        # Each class has two sets, of labelled and of trusted images.
        of_set = one_hot(context.y + self.num_classes * context.trusted, 2 * self.num_classes)
        return kernel, of_set.to(kernel.dtype) * (context.weights > 0).any(0)[:, None]

    def log_probs(self, features: Tensor, context: Context, allowed: Tensor | None = None) -> Tensor:
        """Log-probabilities T n K of images n F."""
        kernel, of_set = self.compare(features, context)
        return self.weigh(kernel, of_set, context.weights, allowed)

    def weigh(self, kernel: Tensor, of_set: Tensor, weights: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Log-probabilities T n K from the kernel n N, the sets N 2K and the resamplings' weights T N."""
        if allowed is None:
            count = of_set.sum(0)[None]
        else:
            kernel, count = kernel * allowed, allowed.to(kernel.dtype) @ of_set
        weighted = (weights.T[:, :, None] * of_set[:, None]).flatten(1)  # N T2K
        mass = (kernel @ weighted).view(-1, len(weights), 2 * self.num_classes)  # n T 2K
        labeled, trusted = (mass / count.clamp(min=1)[:, None]).chunk(2, -1)
        alpha = 1 + self.scale * (labeled + trusted)  # n T K
        return (alpha.log() - alpha.sum(-1, keepdim=True).log()).transpose(0, 1)

    def predict(self, features: Tensor) -> Prediction:
        """As every context head; the vacuity says that an image is of no known class."""
        context = self.context()
        kernel, of_set = self.compare(features, context)
        prediction = mean_prediction(self.weigh(kernel, of_set, context.weights).exp())  # uniform without a context
        near = kernel**NARROWER @ (of_set / of_set.sum(0).clamp(min=1))  # n 2K
        return replace(prediction, outlier=self.num_classes / (self.num_classes + self.scale * near.sum(-1)))
