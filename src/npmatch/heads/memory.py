"""Memories of embeddings, read by similarity: of the last images (CoMatch), or of every labelled image (SimMatch)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Memory(nn.Module):
    """The last Q pairs pushed, as a ring buffer; reading gives the class probabilities of similar images."""

    embeddings: Tensor  # Q D
    probs: Tensor  # Q K
    pushed: Tensor  # 0-d int64: pairs ever pushed; gives the next position and the number of pairs held

    def __init__(self, length: int, width: int, num_classes: int) -> None:
        """Starts empty."""
        super().__init__()
        self.register_buffer("embeddings", torch.zeros(length, width))
        self.register_buffer("probs", torch.zeros(length, num_classes))
        self.register_buffer("pushed", torch.tensor(0))

    @property
    def length(self) -> int:
        """Q, the number of pairs."""
        return len(self.embeddings)

    @torch.no_grad()
    def push(self, embeddings: Tensor, probs: Tensor) -> None:
        """Append pairs n D, n K in order; of more than Q, the newest Q stay."""
        order = torch.arange(len(embeddings), device=self.pushed.device)[-self.length :]
        slots = (self.pushed + order) % self.length
        self.embeddings.index_copy_(0, slots, embeddings[-self.length :].to(self.embeddings.dtype))
        self.probs.index_copy_(0, slots, probs[-self.length :].to(self.probs.dtype))
        self.pushed.add_(len(embeddings))

    def read(self, embeddings: Tensor, temperature: float) -> Tensor:
        """Σ_k softmax_k(z · z_k / t) p_k over the pairs held: n D → n K; zeros while it is empty."""
        empty = torch.arange(self.length, device=self.pushed.device) >= self.pushed
        similarity = embeddings @ self.embeddings.T / temperature
        # The lowest finite number, not −∞: with every row empty the softmax is finite, and it weights zeros.
        return similarity.masked_fill(empty, torch.finfo(similarity.dtype).min).softmax(-1) @ self.probs


def first_views(index: Tensor) -> Tensor:
    """n: for each of the images `index` n, which may hold an image several times, where it is there first.

    What is written to an image's place is taken from there, so that it does not depend on the order of writing.
    """
    return (index[:, None] == index).int().argmax(-1)


class LabeledMemory(nn.Module):
    """The embedding, averaged over time, and the label of every labelled image."""

    embeddings: Tensor  # N D of unit length; zero before an image's first step
    labels: Tensor  # N, int64; K before an image's first step

    def __init__(self, num_labeled: int, width: int, num_classes: int) -> None:
        """Starts empty."""
        super().__init__()
        self.register_buffer("embeddings", torch.zeros(num_labeled, width))
        self.register_buffer("labels", torch.full((num_labeled,), num_classes))
        self.num_classes = num_classes

    def held(self) -> Tensor:
        """N, bool: the images that have been written."""
        return self.labels < self.num_classes

    def similarity(self, embeddings: Tensor, temperature: float) -> Tensor:
        """z · z_j / t: n D → n N; the lowest finite number for images that have not been written."""
        # A copy: a step writes to the memory before the gradient of what it has read is taken.
        similarity = embeddings @ self.embeddings.T.clone() / temperature
        return similarity.masked_fill(~self.held(), torch.finfo(similarity.dtype).min)

    @torch.no_grad()
    def write(self, index: Tensor, embeddings: Tensor, y: Tensor, momentum: float) -> None:
        """z_j ← normalise(m · z_j + (1 − m) · z) for the images `index` n, which may hold an image several times."""
        first = first_views(index)
        mixed = momentum * self.embeddings[index] + (1 - momentum) * embeddings[first]
        self.embeddings[index] = F.normalize(mixed, dim=-1).to(self.embeddings.dtype)
        self.labels[index] = y[first]
