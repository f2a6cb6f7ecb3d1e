"""A kernel process: the evidence for a class is the kernel mass of its images around the image.

    g(x) = W (f(x) − f̄) / ρ,    f̄ the mean feature of labelled images                  the embedding
    k(x, i) = exp(−‖g(x) − g(xᵢ)‖² / 2τ)                                                the kernel, at most 1
    e_c(x) = Σ_{i ∈ L_c} wᵢ k(x, i) / |L_c| + Σ_{i ∈ U_c} wᵢ k(x, i) / |U_c|            evidence for class c
    p(y = c | x) = (1 + s e_c(x)) / Σ_j (1 + s e_j(x))                                  mean of a Dirichlet
    v(x) = K / Σ_j (1 + s e_j(x))                                                       its vacuity

L_c are the labelled images of class c and U_c the unlabelled ones whose pseudo-label c is trusted. Each set is averaged
by itself, so that four labels weigh as much as hundreds of pseudo-labels. ρ is the root mean square of ‖W (f(xᵢ) − f̄)‖
over the labelled images, so that τ has a meaning whatever the features' size. The embedding is not normalised to the
sphere, on which an image far away would lie beside the labelled ones in the same direction. The kernel is not
normalised either: far from all labelled images every e_c is 0 and the prediction uniform, while a softmax over
distances would sum to one there too.

The vacuity is the share of the prediction that comes from the prior and not from any image. It tells images of no known
class from those between two known ones: both have a high entropy, but the latter have evidence. The T samples are T
resamplings of the context (Bayesian bootstrap, wᵢ ~ Exp(1)): where they disagree, few labels leave the class open.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from npmatch.heads.context import Context, ContextHead, embedded
from npmatch.objectives.losses import masked_mean, mean_prediction, one_hot
from npmatch.types import Prediction


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

    def dirichlet(self, features: Tensor, context: Context, allowed: Tensor | None = None) -> Tensor:
        """Parameters n T K of the Dirichlet distributions of images n F, each 1 + s · evidence."""
        g, g_context = embedded(self.embedding, features, context)
        size = masked_mean(g_context.square().sum(-1), ~context.trusted).clamp(min=torch.finfo(g.dtype).tiny)  # ρ²
        distance = (g.square().sum(-1, keepdim=True) + g_context.square().sum(-1) - 2 * g @ g_context.T) / size
        kernel = (-distance.clamp(min=0) / (2 * self.bandwidth)).exp()  # n N
        # Each class has two sets, of labelled and of trusted images.
        of_set = one_hot(context.y + self.num_classes * context.trusted, 2 * self.num_classes)
        of_set = of_set.to(kernel.dtype) * (context.weights > 0).any(0)[:, None]  # N 2K
        if allowed is None:
            count = of_set.sum(0)[None]
        else:
            kernel, count = kernel * allowed, allowed.to(kernel.dtype) @ of_set
        weighted = (context.weights.T[:, :, None] * of_set[:, None]).flatten(1)  # N T2K
        mass = (kernel @ weighted).view(-1, len(context.weights), 2 * self.num_classes)  # n T 2K
        labeled, trusted = (mass / count.clamp(min=1)[:, None]).chunk(2, -1)
        parameters: Tensor = 1 + self.scale * (labeled + trusted)
        return parameters

    def log_probs(self, features: Tensor, context: Context, allowed: Tensor | None = None) -> Tensor:
        """Log-probabilities T n K of images n F."""
        alpha = self.dirichlet(features, context, allowed)
        return (alpha.log() - alpha.sum(-1, keepdim=True).log()).transpose(0, 1)

    def predict(self, features: Tensor) -> Prediction:
        """As of every context head; the mean vacuity of the T predictions says that an image is of no known class."""
        alpha = self.dirichlet(features, self.context()).transpose(0, 1)  # T n K; all 1 without a context
        total = alpha.sum(-1)
        return replace(mean_prediction(alpha / total[..., None]), outlier=(self.num_classes / total).mean(0))
