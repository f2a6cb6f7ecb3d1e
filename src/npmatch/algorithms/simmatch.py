"""SimMatch: Semi-supervised Learning with Similarity Matching. Zheng et al., CVPR 2022.

Idea: a weak and a strong view of an image agree not only about its class, but also about which labelled images it is
similar to; both kinds of pseudo-label correct one another.

    L = CE(labelled) + λ_u · L_u + λ_in · L_in
    L_u  = 1/μB Σ_b 1(max p̂_b ≥ τ) · CE(p̂_b, p(y | strong(u_b)))
    L_in = 1/μB Σ_b CE(ĥ_b, h(strong(u_b)))

    p̂_k = α · a_k + (1 − α) · Σ_{j: y_j = k} h_j                    class pseudo-label
    ĥ_j ∝ h_j · a_{y_j}                                             instance pseudo-label
    h_j ∝ exp(z · z_j / t) over the memory of labelled images j,    z the embedding of an image

a is the prediction on the weak view, aligned to the uniform distribution over a window of batches; h is of the weak
view in both pseudo-labels. After each step z_j ← normalise(m · z_j + (1 − m) · z(x_j)) for the labelled batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import LabeledMemory, WeakNorm
from npmatch.objectives.losses import one_hot
from npmatch.objectives.selection import WindowAlignment
from npmatch.types import Batch, NonNegativeFloat, PositiveFloat, Share, Size, Step, Task


class SimMatch(Algorithm):
    """Pseudo-labels of class and of similarity to every labelled image."""

    @dataclass(frozen=True)
    class Config:
        """The hyperparameters of the paper's code for CIFAR."""

        embedding: Size = 128  # size of z
        temperature: PositiveFloat = 0.1  # t, temperature of similarities between embeddings
        confidence: Share = 0.95  # τ: least confidence of a trusted pseudo-label
        smoothing: Share = 0.9  # α, share of an image's own prediction in its pseudo-label
        window: Size = 32  # number of batches whose mean prediction is used for alignment
        momentum: Share = 0.7  # m, share of the old embedding when an image of the memory is written
        warm_up: Share = 1 / 1024  # share of training, at its start, in which the memory is written but not used
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_u, weight of the unlabelled loss
        instance_weight: NonNegativeFloat = 1.0  # λ_in, weight of the loss of similarities
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the projection, which prediction does not need, the alignment window and the memory."""
        super().__init__(backbone, task, config)
        c, features = self.config, int(backbone.num_features)  # type: ignore[arg-type]
        self.projection = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, c.embedding))
        self.alignment = WindowAlignment(c.window, task.num_classes)
        # Paper: starts with random embeddings of class 0; here: leaves out images before their first step, because in
        # short runs many steps would compare with them.
        self.memory = LabeledMemory(task.num_labeled, c.embedding, task.num_classes)

    # Paper: an averaged teacher for weak views and memory on ImageNet; here: the network itself, as on CIFAR, because a
    # second network would double the memory for one recipe.
    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """The paper's Algorithm 1."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)
        is_used = (progress >= c.warm_up) & self.memory.held().any()

        loss_x = F.cross_entropy(head(f_x), batch.y)

        p, h = self.pseudo_labels(f_weak.detach(), is_used)
        confidence, pseudo = p.max(-1)
        keep = confidence >= c.confidence
        loss_u = (keep * F.cross_entropy(head(f_strong), p, reduction="none")).mean()

        log_h_strong = self.memory.similarity(self.embed(f_strong), c.temperature).log_softmax(-1)
        # Of all images, also of those whose class is not trusted.
        loss_in = is_used * -(h * log_h_strong).sum(-1).mean()
        self.memory.write(batch.labeled, self.embed(f_x.detach()), batch.y, c.momentum)

        loss = loss_x + c.unlabeled_weight * loss_u + c.instance_weight * loss_in
        logs = {"loss_labeled": loss_x, "loss_unlabeled": loss_u, "loss_instance": loss_in}
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)

    @torch.no_grad()
    def pseudo_labels(self, f_weak: Tensor, is_used: Tensor) -> tuple[Tensor, Tensor]:
        """Pseudo-labels of weak features: of class, p̂ U K, and of labelled images, ĥ U N; `is_used`: the memory is."""
        a = self.alignment(self.model.head(f_weak).softmax(-1))
        h = self.memory.similarity(self.embed(f_weak), self.config.temperature).softmax(-1)
        labels = one_hot(self.memory.labels, self.task.num_classes).to(h.dtype)  # N K, zeros for images left out
        share = (1 - self.config.smoothing) * is_used
        p = (1 - share) * a + share * (h @ labels)
        h = h * (a @ labels.T)
        return p, h / h.sum(-1, keepdim=True).clamp(min=torch.finfo(h.dtype).tiny)

    def embed(self, features: Tensor) -> Tensor:
        """N F → N D of unit length."""
        z: Tensor = F.normalize(self.projection(features), dim=-1)
        return z
