"""A first-in-first-out memory of (embedding, class probabilities), read by similarity (CoMatch's memory bank)."""

from __future__ import annotations

import torch
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
