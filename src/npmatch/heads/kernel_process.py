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
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.heads.context import Context, ContextHead, FrozenProcess, RowsOfClasses, centre_of, embedded
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

    def log_probs(self, features: Tensor, context: Context, allowed: Tensor | None = None) -> Tensor:
        """Log-probabilities T n K of images n F."""
        g, g_context = embedded(self.embedding, features, context)
        size = mean_square(g_context, context).clamp(min=torch.finfo(g.dtype).tiny)
        distance = (g.square().sum(-1, keepdim=True) + g_context.square().sum(-1) - 2 * g @ g_context.T) / size
        kernel = (-distance.clamp(min=0) / (2 * self.bandwidth)).exp()  # n N
        # Each class has two sets, of labelled and of trusted images.
        of_set = one_hot(context.y + self.num_classes * context.trusted, 2 * self.num_classes)  # N 2K
        of_set = of_set.to(kernel.dtype) * (context.weights > 0).any(0)[:, None]
        if allowed is None:
            count = of_set.sum(0)[None]
        else:
            kernel, count = kernel * allowed, allowed.to(kernel.dtype) @ of_set
        weighted = (context.weights.T[:, :, None] * of_set[:, None]).flatten(1)  # N T2K
        mass = (kernel @ weighted).view(-1, len(context.weights), 2 * self.num_classes)  # n T 2K
        labeled, trusted = (mass / count.clamp(min=1)[:, None]).chunk(2, -1)
        alpha = 1 + self.scale * (labeled + trusted)  # n T K
        return (alpha.log() - alpha.sum(-1, keepdim=True).log()).transpose(0, 1)

    def frozen_process(self) -> FrozenKernelProcess:
        """The process with its present weights and context; the vacuity says that an image is of no known class."""
        return FrozenKernelProcess(self)


class FrozenKernelProcess(FrozenProcess):
    """The same in the embedding a(x) = g(x) / √2τ, in which k(x, i) = exp(2 a(x) · a(xᵢ) − ‖a(xᵢ)‖² − ‖a(x)‖²).

    Each class has one further point, the prior: its kernel is 1 everywhere.
    """

    centre: Tensor  # F
    weight: Tensor  # M F, of the embedding
    points: Tensor  # KP M: 2 a(xᵢ)
    offset: Tensor  # KP: −‖a(xᵢ)‖²
    share: Tensor  # 1 KP: s / K|L_c| or s / K|U_c|, by the set that a point is in; 1 / K for the prior

    def __init__(self, head: KernelProcessHead) -> None:
        """Takes over the head's weights and context."""
        super().__init__()
        context, classes = head.context(), head.num_classes
        centre = centre_of(context)
        g = head.embedding(context.features - centre)
        # Not 0 where all labelled images are one: squares of what is divided by its root must be finite.
        unit = (2 * head.bandwidth * mean_square(g, context)).clamp(min=1e-30).sqrt()
        a = g / unit
        offset = F.pad(-a.square().sum(-1), (0, classes), value=torch.finfo(g.dtype).max)
        in_set = context.y + classes * context.trusted
        share = head.scale / one_hot(in_set, 2 * classes).sum(0)[in_set].to(g.dtype)  # N
        weights = F.pad(context.weights * share, (0, classes), value=1)
        rows = RowsOfClasses(torch.cat([context.y, torch.arange(classes, device=g.device)]), classes)
        self.hold(
            centre=centre,
            weight=head.embedding.weight / unit,
            points=2 * rows(F.pad(a, (0, 0, 0, classes))).flatten(0, 1),
            offset=rows(offset[:, None]).flatten(),
            resampled=rows(weights.T),
            share=rows(F.pad(share, (0, classes), value=1)[:, None] / classes).view(1, -1),
        )

    def forward(self, features: Tensor) -> Prediction:
        """As every process, with the vacuity; uniform without a context."""
        a = F.linear(features - self.centre, self.weight)
        kernel = F.linear(a, self.points, self.offset)  # n KP; in place, because new memory of this size takes longer
        kernel = kernel.sub_(a.square().sum(-1, keepdim=True)).clamp_(max=0).exp_()
        alpha = self.sum_by_class(kernel)  # K n T
        prediction = mean_prediction((alpha / alpha.sum(0)).permute(2, 1, 0))
        evidence = F.linear(kernel.pow_(NARROWER), self.share)  # n 1: 1 + s Σ_j e'_j(x) / K
        return replace(prediction, outlier=evidence.squeeze(-1).reciprocal())


def mean_square(g: Tensor, context: Context) -> Tensor:
    """ρ², 0-d, of embeddings N M."""
    return masked_mean(g.square().sum(-1), ~context.trusted)
