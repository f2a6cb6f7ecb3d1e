"""CR-Match: Revisiting Consistency Regularization for Semi-Supervised Learning. Fan et al., GCPR 2021.

Idea: the predictions on two views of an image agree, while their features may differ; pushed apart, they describe the
image from more sides. The network also learns to tell by how much images were rotated.

    L = CE(labelled) + λ_u · L_u + λ_d · L_d + λ_r · L_rot
    L_u   = 1/μB Σ_b 1(max q_b ≥ τ) · H(argmax q_b, p(y | strong(u_b))),   q_b = p(y | weak(u_b))
    L_d   = 1/μB Σ_b 1(max q_b ≥ τ) · max(0, cos(g(weak(u_b)), g(strong(u_b))))
    L_rot = mean over B unlabelled images and four rotations of H(rotation, r(turned weak(u_b)))

g is a linear map of the features, r a head of two layers. Details as in USB.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import WeakNorm
from npmatch.types import Adjustment, Batch, NonNegativeFloat, Share, Step, Task


class CRMatch(Algorithm):
    """Hard pseudo-labels as in FixMatch, features of two views pushed apart, and a rotation loss."""

    @dataclass(frozen=True)
    class Config:
        """The hyperparameters of USB."""

        confidence: Share = 0.95  # τ: least confidence of a trusted pseudo-label
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_u, weight of the unlabelled loss
        distance_weight: NonNegativeFloat = 1.0  # λ_d, weight of the loss that pushes features apart
        rotation_weight: NonNegativeFloat = 1.0  # λ_r, weight of the rotation loss
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running
        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the map g and the rotation head, neither of which prediction needs."""
        super().__init__(backbone, task, config)
        features = int(backbone.num_features)  # type: ignore[arg-type]
        # Paper: g takes the flattened map before pooling; here: the pooled features, as with transformers, because a
        # backbone gives no more than these, and the size of its map is not known before the first image.
        self.distance_map = nn.Linear(features, features)
        self.rotation_head = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, 4))

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """FixMatch's two losses, then the distance and the rotations."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        # Paper: rotates a separate batch of B unlabelled images; here: B of the weak views, because a batch has no
        # others. Every μ-th, because on several ranks these are the same images as on one.
        upright = u_weak[:: len(u_weak) // len(batch.x)]
        turned = [torch.rot90(upright, k, (2, 3)) for k in range(4)]
        f_x, f_weak, f_strong, *f_turned = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm, *turned)

        loss_x = F.cross_entropy(self.adjust.labeled(head(f_x)), batch.y)

        with torch.no_grad():
            confidence, pseudo = head(f_weak).softmax(-1).max(-1)
            keep = confidence >= c.confidence
        logits_u = self.adjust.unlabeled(head(f_strong), pseudo)
        loss_u = (keep * F.cross_entropy(logits_u, pseudo, reduction="none")).mean()

        # With joint statistics the gradient goes through both views; otherwise weak views have none.
        cosine = F.cosine_similarity(self.distance_map(f_weak), self.distance_map(f_strong), dim=-1)
        loss_d = (keep * cosine.clamp(min=0)).mean()

        turns = torch.arange(4 * len(batch.y), device=batch.y.device) // len(batch.y)
        loss_rotation = F.cross_entropy(self.rotation_head(torch.cat(f_turned)), turns)

        loss = loss_x + c.unlabeled_weight * loss_u + c.distance_weight * loss_d + c.rotation_weight * loss_rotation
        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "loss_distance": loss_d,
            "loss_rotation": loss_rotation,
        }
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)
