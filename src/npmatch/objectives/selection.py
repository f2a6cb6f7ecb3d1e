"""Which pseudo-labels to trust: curriculum and self-adaptive thresholds, distribution alignment, moving averages."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn


def align_to_uniform(probs: Tensor) -> Tensor:
    """Distribution alignment within the batch: p ← normalise(p / batch mean of p), n K."""
    aligned = probs / probs.mean(0, keepdim=True).clamp(min=1e-6)
    return aligned / aligned.sum(-1, keepdim=True)


def align(probs: Tensor, mean: Tensor, target: Tensor | None = None) -> Tensor:
    """Distribution alignment: p ← normalise(p · target / mean), n K; the target K is uniform if none is given."""
    aligned = probs / mean.clamp(min=1e-6)
    if target is not None:
        aligned = aligned * target
    return aligned / aligned.sum(-1, keepdim=True)


class WindowAlignment(nn.Module):
    """Distribution alignment over time: p ← normalise(p · target / mean prediction of the last L batches)."""

    means: Tensor  # L K: mean predictions of the last L batches, a ring buffer; zero where it is not filled yet
    batches: Tensor  # 0-d int64: batches in the window and before

    def __init__(self, length: int, num_classes: int, starts_full: bool = False) -> None:
        """Starts empty, so that the first batch is aligned by its own mean, or full of uniform predictions."""
        super().__init__()
        start = 1 / num_classes if starts_full else 0.0
        self.register_buffer("means", torch.full((length, num_classes), start))
        self.register_buffer("batches", torch.tensor(length if starts_full else 0))

    def mean(self) -> Tensor:
        """K: mean prediction over the window."""
        return self.means.sum(0) / self.batches.clamp(1, len(self.means))

    @torch.no_grad()
    def forward(self, probs: Tensor, target: Tensor | None = None) -> Tensor:
        """Adds a batch n K to the window and aligns it to `target` K, or to the uniform distribution."""
        slot = self.batches % len(self.means)
        self.means.index_copy_(0, slot[None], probs.mean(0, keepdim=True).to(self.means.dtype))
        self.batches.add_(1)
        return align(probs, self.mean(), target)


Alignment = bool | Literal["window"]  # none, by the mean of the batch, or by the mean of the last batches


def make_alignment(kind: Alignment, window: int, num_classes: int) -> Callable[[Tensor], Tensor]:
    """The distribution alignment that a setting names; `window` is the number of batches of the last kind."""
    if kind == "window":
        return WindowAlignment(window, num_classes)
    return align_to_uniform if kind else nn.Identity()


class Curriculum(nn.Module):
    """Curriculum pseudo-labelling (FlexMatch, CPL): a class that is learnt less needs less confidence.

    Stores for every unlabelled image the class that was last predicted with confidence, else `unused` (= K), and the
    number of images of each class. The cost of a step depends on the batch and not on the number of images.
    """

    per_image: ClassVar[tuple[str, ...]] = ("assigned",)  # buffers of N rows, of which a step changes its batch's

    assigned: Tensor  # N, int64: the class last assigned, K = unused
    counts: Tensor  # K + 1, int64: images per class, unused last

    def __init__(self, num_unlabeled: int, num_classes: int, threshold: float) -> None:
        """All images start unused, so all thresholds start at 0."""
        super().__init__()
        self.threshold = threshold  # τ_c
        self.num_classes = num_classes
        self.register_buffer("assigned", torch.full((num_unlabeled,), num_classes))
        counts = torch.zeros(num_classes + 1, dtype=torch.long)
        counts[-1] = num_unlabeled
        self.register_buffer("counts", counts)

    def thresholds(self) -> Tensor:
        """K: τ_c · β_c / (2 − β_c) with β_c = σ_c / max(max σ, #unused), FlexMatch's warm-up form."""
        used, unused = self.counts[:-1].float(), self.counts[-1].float()
        beta = used / torch.maximum(used.max(), unused).clamp(min=1)
        return self.threshold * beta / (2 - beta)

    def update(self, index: Tensor, pseudo: Tensor, confident: Tensor) -> None:
        """Reassign the confident images of a batch; `index` U holds no image twice."""
        old = self.assigned[index]
        new = torch.where(confident, pseudo, old)
        one = torch.ones_like(old)
        self.counts.scatter_add_(0, old, -one).scatter_add_(0, new, one)
        self.assigned[index] = new


class MovingAverage(nn.Module):
    """Exponential moving average of a value of each batch: v ← m·v + (1 − m)·(value of the batch)."""

    value: Tensor  # [...]: v

    def __init__(self, start: Tensor, decay: float) -> None:
        """`start` [...] is v before the first batch, `decay` is m."""
        super().__init__()
        self.decay = decay
        self.register_buffer("value", start.clone())

    @torch.no_grad()
    def forward(self, value: Tensor) -> Tensor:
        """Takes in the value of a batch, [...], and returns v."""
        return self.value.lerp_(value.to(self.value.dtype), 1 - self.decay)


class SelfAdaptiveThresholds(nn.Module):
    """Self-adaptive thresholding (FreeMatch, SAT): thresholds rise with the confidence that the network has reached.

    The global threshold is the moving average of the mean confidence. A class whose mean probability is below the
    largest one has a threshold that is lower by the same factor.
    """

    def __init__(self, num_classes: int, decay: float) -> None:
        """Starts from uniform predictions, so all thresholds start at 1/K."""
        super().__init__()
        self.confidence = MovingAverage(torch.tensor(1 / num_classes), decay)  # τ
        self.class_probs = MovingAverage(torch.full((num_classes,), 1 / num_classes), decay)  # p̃

    def update(self, probs: Tensor) -> None:
        """Takes in the predictions of a batch, n K."""
        self.confidence(probs.amax(-1).mean())
        self.class_probs(probs.mean(0))

    def thresholds(self) -> Tensor:
        """K: τ(c) = τ · p̃(c) / max p̃."""
        p = self.class_probs.value
        return self.confidence.value * p / p.max()


class TruncatedGaussian(nn.Module):
    """Soft weights of pseudo-labels (SoftMatch): 1 from the mean confidence on, below it a Gaussian around the mean.

    The mean μ and the variance σ² of the confidence are moving averages over batches.
    """

    def __init__(self, num_classes: int, decay: float, sigmas: float) -> None:
        """The Gaussian has the standard deviation σ / `sigmas`; μ starts at 1/K and σ² at 1."""
        super().__init__()
        self.sigmas = sigmas
        self.mean = MovingAverage(torch.tensor(1 / num_classes), decay)  # μ
        self.variance = MovingAverage(torch.tensor(1.0), decay)  # σ²

    def update(self, confidence: Tensor) -> None:
        """Takes in the confidences of a batch, n."""
        self.mean(confidence.mean())
        self.variance(confidence.var(correction=min(1, len(confidence) - 1)))  # unbiased; 0 for one image

    def weights(self, confidence: Tensor) -> Tensor:
        """Weights n, in [0, 1], of pseudo-labels with these confidences."""
        below = (confidence - self.mean.value).clamp(max=0)
        return torch.exp(-0.5 * (self.sigmas * below) ** 2 / self.variance.value.clamp(min=1e-12))
