"""What the processes share that predict from remembered points: labelled and trusted images, and T resamplings."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from npmatch.heads.bank import TrustedPoints
from npmatch.objectives.losses import masked_mean
from npmatch.types import Prediction


class Context(NamedTuple):
    """Images that a process predicts from: labelled ones, and unlabelled ones with a trusted pseudo-label."""

    features: Tensor  # N F
    y: Tensor  # N, int64
    weights: Tensor  # T N: how much each resampling counts each image; 0 in every one if there is no image here
    trusted: Tensor  # N, bool: unlabelled, with a pseudo-label


def resample(samples: int, points: int, like: Tensor) -> Tensor:
    """The Bayesian bootstrap: T N weights of mean 1, drawn for T resamplings of N points."""
    return torch.empty(samples, points, device=like.device, dtype=like.dtype).exponential_()


def centre_of(context: Context) -> Tensor:
    """The labelled images' mean feature, F."""
    return masked_mean(context.features, ~context.trusted)


def embedded(embedding: nn.Module, features: Tensor, context: Context) -> tuple[Tensor, Tensor]:
    """Embeddings n M and N M, of images n F and of the context, about the labelled images' mean feature."""
    # Features behind a ReLU all point into one corner: without the centre every cosine would be near 1.
    centre = centre_of(context)
    return embedding(features - centre), embedding(context.features - centre)


def other_images(image: Tensor, y: Tensor) -> Tensor:
    """N N, bool: which points of a context a labelled image may be predicted from, itself being one of them.

    `image` N names the image of each point, as a batch may hold one several times. The images must not predict
    themselves; where no other image has the class, they do, because nothing else could teach it.
    """
    other = image[:, None] != image
    has_other = (other & (y[:, None] == y)).any(-1)
    return other | ~has_other[:, None]


class FrozenProcess(nn.Module):
    """Predictions from a context and weights that stay as they are: what depends on these alone is computed once.

    The context's points are in K rows of P, a row for each class, so that the sum over a class is one product for all T
    resamplings. The tensors move with the head that they belong to, and are not saved.
    """

    resampled: Tensor  # K P T: weights of the points; 0 where a row has no more of them

    def hold(self, **tensors: Tensor) -> None:
        """Takes these tensors as attributes."""
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)

    def sum_by_class(self, mass: Tensor) -> Tensor:
        """Σᵢ wᵢ mᵢ(x) over each class's points: n KP → K n T."""
        return mass.view(mass.shape[0], *self.resampled.shape[:2]).transpose(0, 1) @ self.resampled

    def forward(self, features: Tensor) -> Prediction:
        """Average of the T predictions of images n F, its entropy, and the samples' disagreement."""
        raise NotImplementedError


class RowsOfClasses:
    """The order of a frozen process's points: K rows of P, with zeros where a class has fewer than P."""

    def __init__(self, y: Tensor, num_classes: int) -> None:
        """Points have the labels N."""
        of_class = [torch.where(y == c)[0] for c in range(num_classes)]
        self.index = pad_sequence(of_class, batch_first=True, padding_value=len(y))  # K P; N: no point

    def __call__(self, values: Tensor) -> Tensor:
        """N D → K P D."""
        return F.pad(values, (0, 0, 0, 1))[self.index]


class ContextHead(nn.Module):
    """A process p(y | feature, context).

    In training the context is the batch's labelled images and the trusted unlabelled ones of the last batches. A
    prediction needs the context set by `set_context`; a saved model holds it.
    """

    context_features: Tensor  # N F: empty until `set_context`
    context_labels: Tensor  # N, int64
    context_weights: Tensor  # T N: stored draws, which make predictions repeatable
    context_trusted: Tensor  # N, bool
    frozen: FrozenProcess | None  # set by `freeze`

    def __init__(self, num_features: int, num_classes: int, samples: int, points: int) -> None:
        """At most about `points` labelled images, the same number of each class, are kept, and as many trusted ones."""
        super().__init__()
        self.num_classes, self.samples, self.points = num_classes, samples, points
        self.register_buffer("context_features", torch.zeros(0, num_features))
        self.register_buffer("context_labels", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("context_weights", torch.zeros(samples, 0))
        self.register_buffer("context_trusted", torch.zeros(0, dtype=torch.bool))
        self.register_module("frozen", None)

    def log_probs(self, features: Tensor, context: Context, allowed: Tensor | None = None) -> Tensor:
        """Log-probabilities T n K of images n F; `allowed` n N says which context points each is predicted from."""
        raise NotImplementedError

    def frozen_process(self) -> FrozenProcess:
        """The process with its present weights and context."""
        raise NotImplementedError

    def context_of(self, features: Tensor, y: Tensor, trusted: TrustedPoints | None = None) -> Context:
        """These labelled points, N F and N, and the trusted ones, with newly drawn weights."""
        weights = resample(self.samples, len(y), features)
        is_trusted = torch.zeros_like(y, dtype=torch.bool)
        if trusted is None:
            return Context(features, y, weights, is_trusted)
        in_use = trusted.in_use()
        more = resample(self.samples, len(in_use), features) * in_use
        return Context(
            torch.cat([features, trusted.features[:-1].to(features.dtype)]),
            torch.cat([y, trusted.labels[:-1]]),
            torch.cat([weights, more], 1),
            torch.cat([is_trusted, torch.ones_like(in_use)]),
        )

    @torch.no_grad()
    def set_context(self, features: Tensor, y: Tensor, trusted: Tensor | None = None) -> None:
        """For prediction only: makes these points the context, N F and N; `trusted` N says which are unlabelled."""
        trusted = torch.zeros_like(y, dtype=torch.bool) if trusted is None else trusted
        kept = evenly(y + self.num_classes * trusted, max(1, self.points // self.num_classes))
        draws = torch.Generator().manual_seed(0)  # the same on every machine, and for every context of this size
        weights = torch.empty(self.samples, len(kept)).exponential_(generator=draws)
        self.context_features, self.context_labels, self.context_trusted = features[kept], y[kept], trusted[kept]
        self.context_weights = weights.to(features)
        self.frozen = None

    def context(self) -> Context:
        """The points that `set_context` has made the context."""
        return Context(self.context_features, self.context_labels, self.context_weights, self.context_trusted)

    @torch.no_grad()
    def freeze(self) -> None:
        """For prediction only: computes once what does not depend on the image.

        `train()`, another context and loaded weights undo it; whoever changes weights in another way freezes again.
        """
        self.frozen = self.frozen_process()

    def train(self, mode: bool = True) -> ContextHead:
        """Drops the context, as training makes it outdated."""
        if mode:
            self.frozen = None
        if mode and len(self.context_labels):
            for name in ("features", "labels", "trusted"):
                setattr(self, f"context_{name}", getattr(self, f"context_{name}")[:0])
            self.context_weights = self.context_weights[:, :0]
        super().train(mode)
        return self

    @torch.no_grad()
    def predict(self, features: Tensor) -> Prediction:
        """Average of the T predictions, its entropy, and the samples' disagreement; uniform without a context."""
        frozen = self.frozen_process() if self.frozen is None else self.frozen
        prediction: Prediction = frozen(features)
        return prediction

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Adopts the size of the loaded context."""
        self.frozen = None
        for name in ("context_features", "context_labels", "context_weights", "context_trusted"):
            loaded = state_dict.get(prefix + name)
            if loaded is not None:
                setattr(self, name, torch.zeros_like(loaded, device=getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *args)


def evenly(y: Tensor, most: int) -> Tensor:
    """Positions, sorted, of at most `most` points of each class, evenly spaced among its own."""
    parts = []
    for c in torch.unique(y):
        of_class = torch.where(y == c)[0]
        steps = torch.arange(min(most, len(of_class)), device=y.device) * len(of_class)
        parts.append(of_class[steps // min(most, len(of_class))])
    return torch.cat(parts).sort().values
