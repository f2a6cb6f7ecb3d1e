"""IOMatch: Simplifying Open-Set Semi-Supervised Learning with Joint Inliers and Outliers Utilization. Li et al.,
ICCV 2023.

Idea: all outliers together are one further class. Classifier and one-vs-all detectors make a target over K + 1 classes,
from which an open-set classifier learns with outliers too; none of it needs to know the outliers beforehand.

    L = CE(y, p(x)) + λ_mb · L_ova + λ_u · L_u + λ_op · L_op
    L_ova = 1/B Σ_b  −log o_y(x_b) + max_{k≠y} −log ō_k(x_b)
    L_u   = 1/U Σ_b  1(max_k a_bk ≥ τ) · 1(S_b < ½) · CE(a_b, p(strong(u_b)))
    L_op  = 1/U Σ_b  1(max_k q_bk ≥ τ_q) · CE(q_b, φ(strong(u_b)))
    q_b = (a_b1·o_b1, …, a_bK·o_bK, S_b),   S_b = Σ_k a_bk·ō_bk

a: the prediction of weak(u), aligned to the uniform distribution. o_k: probability that weak(u) is of class k, by the
detector of this class alone; ō_k = 1 − o_k. φ: probabilities of the open-set classifier over K + 1 classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import LinearHead, Model, WeakNorm
from npmatch.heads.one_vs_all import detector_log_probs, linear_detector, one_vs_all_loss
from npmatch.objectives.losses import entropy
from npmatch.objectives.selection import WindowAlignment
from npmatch.types import Batch, NonNegativeFloat, Prediction, Share, Size, Step, Task


class IOMatchHead(nn.Module):
    """A linear classifier on the features; detectors and the open-set classifier on a projection of them."""

    def __init__(self, num_features: int, num_classes: int, width: int) -> None:
        """`width` is the size of the projection."""
        super().__init__()
        self.classifier = LinearHead(num_features, num_classes)
        self.projection = nn.Sequential(
            nn.Linear(num_features, num_features), nn.ReLU(), nn.Linear(num_features, width)
        )
        self.detector = linear_detector(width, num_classes)
        self.open_classifier = LinearHead(width, num_classes + 1)

    def forward(self, features: Tensor) -> Tensor:
        """Logits of the known classes, N F → N K."""
        logits: Tensor = self.classifier(features)
        return logits

    def detect(self, features: Tensor) -> Tensor:
        """The detectors' log-probabilities, N F → N 2 K."""
        return detector_log_probs(self.detector(self.projection(features)))

    def open_logits(self, features: Tensor) -> Tensor:
        """Logits of the known classes and, last, of the outliers, N F → N K+1."""
        logits: Tensor = self.open_classifier(self.projection(features))
        return logits

    def predict(self, features: Tensor) -> Prediction:
        """N F → known classes by the classifier, the outlier's probability by the open-set classifier."""
        probs = self(features).softmax(-1)
        return Prediction(probs, entropy(probs), outlier=self.open_logits(features).softmax(-1)[:, -1])


class IOMatch(Algorithm):
    """Soft targets over the known classes for inliers, and over one more class for all images."""

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters for CIFAR-100; CIFAR-10 has no alignment."""

        confidence: Share = 0.95  # τ: least confidence of a trusted prediction of an inlier
        open_confidence: Share = 0.5  # τ_q: least probability of the likeliest of the K + 1 classes in a trusted target
        max_outlier: Share = 0.5  # images with a lower S are inliers
        alignment: bool = True  # whether predictions are aligned to the uniform distribution
        window: Size = 128  # number of batches whose mean prediction is used for alignment
        width: Size = 128  # size of the projection that detectors and open-set classifier take
        detector_weight: NonNegativeFloat = 1.0  # λ_mb, weight of the detectors' loss
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_u, weight of the unlabelled loss of inliers
        open_weight: NonNegativeFloat = 1.0  # λ_op, weight of the open-set classifier's loss
        open_from: Share = 1 / 256  # progress from which the open-set classifier learns: one epoch of the paper's 256
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the alignment window to the model."""
        super().__init__(backbone, task, config)
        self.alignment = WindowAlignment(self.config.window, task.num_classes)

    @classmethod
    def make_model(cls, backbone: nn.Module, task: Task, config: Config) -> Model:
        """The backbone with its three classifiers."""
        return Model(backbone, IOMatchHead(int(backbone.num_features), task.num_classes, config.width))  # type: ignore[arg-type]

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Labelled losses, targets from weak views, losses of strong views."""
        c, head = self.config, self.model.head
        assert isinstance(head, IOMatchHead)
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)

        loss_x = F.cross_entropy(head(f_x), batch.y)
        loss_ova = one_vs_all_loss(head.detect(f_x), batch.y)

        with torch.no_grad():
            p = head(f_weak).softmax(-1)
            a = self.alignment(p) if c.alignment else p
            q = open_target(a, head.detect(f_weak))
            outlier = q[:, -1]  # S
            confidence, pseudo = a.max(-1)
            keep = (confidence >= c.confidence) & (outlier < c.max_outlier)
            keep_open = (q.amax(-1) >= c.open_confidence) & (progress >= c.open_from)
        loss_u = (keep * F.cross_entropy(head(f_strong), a, reduction="none")).mean()
        loss_open = (keep_open * F.cross_entropy(head.open_logits(f_strong), q, reduction="none")).mean()

        loss = loss_x + c.detector_weight * loss_ova + c.unlabeled_weight * loss_u + c.open_weight * loss_open
        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "loss_detector": loss_ova,
            "loss_open": loss_open,
            "inliers": (outlier < c.max_outlier).float().mean(),
            "trusted_open": keep_open.float().mean(),
        }
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)


def open_target(probs: Tensor, log_o: Tensor) -> Tensor:
    """q, N K+1: closed-set probabilities N K, each shared by its detector (log_o N 2 K) between class and outliers."""
    outlier, inlier = log_o.exp().unbind(1)
    return torch.cat([probs * inlier, (probs * outlier).sum(-1, keepdim=True)], -1)
