"""CoMatch: Semi-supervised Learning with Contrastive Graph Regularization. Li et al., ICCV 2021.

Idea: class probabilities and embeddings teach each other. Embeddings smooth the pseudo-labels with those of similar
images in a memory; images whose pseudo-labels agree are drawn together in embedding space.

    L = CE(labelled) + λ_cls · 1[max q ≥ τ] · CE(q, strong) + λ_ctr · CE(W^q, W^z)

    q   = α · p + (1 − α) · Σ_k a_k p_k,   a_k ∝ exp(z · z_k / t) over the memory
    W^q ∝ q_i · q_j where that is ≥ T, 1 on the diagonal;   W^z ∝ exp(z_i · z'_j / t) between two strong views

p is the prediction on the weak view, aligned over a window of batches; rows of both graphs sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import Memory
from npmatch.objectives.losses import one_hot
from npmatch.objectives.selection import WindowAlignment
from npmatch.types import Batch, NonNegativeFloat, PositiveFloat, Share, Size, Step, Task, Views


class CoMatch(Algorithm):
    """Memory-smoothed pseudo-labels and graph-based contrastive learning."""

    views = Views(weak=1, strong=2)

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters for CIFAR-10; STL-10 has λ_ctr 5."""

        embedding: Size = 64  # size of z
        temperature: PositiveFloat = 0.2  # t, temperature of similarities between embeddings
        confidence: Share = 0.95  # τ: least confidence of a trusted pseudo-label
        graph_threshold: Share = 0.8  # T: pseudo-labels less similar than this have no edge
        smoothing: Share = 0.9  # α, share of an image's own prediction in its pseudo-label
        window: Size = 32  # number of batches whose mean prediction is used for alignment
        bank: Size = 2560  # K, size of the memory: five steps of (μ + 1)·B with B 64 and μ 7
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_cls, weight of the unlabelled loss
        contrastive_weight: NonNegativeFloat = 1.0  # λ_ctr, weight of the contrastive loss

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the projection, which prediction does not need, the alignment window and the memory."""
        super().__init__(backbone, task, config)
        c, features = self.config, int(backbone.num_features)  # type: ignore[arg-type]
        self.projection = nn.Sequential(
            nn.Linear(features, features), nn.LeakyReLU(0.1), nn.Linear(features, c.embedding)
        )
        self.alignment = WindowAlignment(c.window, task.num_classes)
        self.memory = Memory(c.bank, c.embedding, task.num_classes)

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """The paper's Algorithm 1."""
        c, head, model = self.config, self.model.head, self.model
        (u_weak,), (u_strong, u_other) = batch.weak, batch.strong
        f_x, f_weak, f_strong, f_other = model.features_together(batch.x, u_weak, u_strong, u_other)
        loss_x = F.cross_entropy(head(f_x), batch.y)

        q = self.pseudo_label(f_x.detach(), batch.y, f_weak.detach())
        confidence, pseudo = q.max(-1)
        keep = confidence >= c.confidence
        loss_u = (F.cross_entropy(head(f_strong), q, reduction="none") * keep).mean()

        z, z_other = self.embed(f_strong), self.embed(f_other)
        log_embedding_graph = (z @ z_other.T / c.temperature).log_softmax(-1)
        loss_graph = -(pseudo_label_graph(q, c.graph_threshold) * log_embedding_graph).sum(-1).mean()

        loss = loss_x + c.unlabeled_weight * loss_u + c.contrastive_weight * loss_graph
        logs = {"loss_labeled": loss_x, "loss_unlabeled": loss_u, "loss_contrastive": loss_graph}
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)

    @torch.no_grad()
    def pseudo_label(self, f_x: Tensor, y: Tensor, f_weak: Tensor) -> Tensor:
        """Smoothed pseudo-labels U K of weak features; then the batch enters the memory, labelled images by label."""
        z_x, z_weak = self.embed(f_x), self.embed(f_weak)
        p = self.alignment(self.model.head(f_weak).softmax(-1))
        # Paper: its code smooths once the memory is full; here: once it holds a pair, because each pair in it is valid.
        share = (1 - self.config.smoothing) * (self.memory.pushed > 0)
        q: Tensor = (1 - share) * p + share * self.memory.read(z_weak, self.config.temperature)
        # The memory gets the prediction before smoothing, so that it never feeds on itself.
        self.memory.push(torch.cat([z_weak, z_x]), torch.cat([p, one_hot(y, self.task.num_classes)]))
        return q

    def embed(self, features: Tensor) -> Tensor:
        """N F → N D of unit length."""
        z: Tensor = F.normalize(self.projection(features), dim=-1)
        return z


def pseudo_label_graph(q: Tensor, threshold: float) -> Tensor:
    """U U: similarities of pseudo-labels U K from `threshold` on, 1 on the diagonal; then rows are normalised to 1."""
    alike = (q @ q.T).fill_diagonal_(1)
    alike = alike * (alike >= threshold)
    return alike / alike.sum(-1, keepdim=True)
