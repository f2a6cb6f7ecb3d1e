"""OpenMatch: Open-set Consistency Regularization for Semi-supervised Learning with Outliers. Saito et al.,
NeurIPS 2021.

Idea: a one-vs-all detector for each class learns to tell inliers from outliers, also from unlabelled images, on which
it must be sure and must say the same of two views; FixMatch then learns from the inliers alone.

    L = CE(y, p(x)) + L_ova + λ_em · L_em + λ_oc · L_oc + L_fm
    L_ova = 1/B Σ_b  −log o_y(x_b) + max_{k≠y} −log ō_k(x_b)                                         (Eq. 1)
    L_em  = mean over images and classes of the entropy of (ō_k(u), o_k(u))                          (Eq. 2)
    L_oc  = 1/U Σ_b Σ_k |o_k(weak(u_b)) − o_k(weak'(u_b))|² + |ō_k(weak(u_b)) − ō_k(weak'(u_b))|²    (Eq. 3)
    L_fm  = mean over inliers of CE(ŷ_b, p(strong(u_b))),   ŷ_b = argmax p(weak(u_b))

o_k: probability that an image is of class k, by the detector of this class alone; ō_k = 1 − o_k. An inlier is an image
with ō_ŷ < ½. The numbers of the equations are from memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import LinearHead, Model, OneVsAllHead
from npmatch.heads.one_vs_all import (
    detector_consistency,
    detector_entropy,
    linear_detector,
    one_vs_all_loss,
    outlier_score,
)
from npmatch.objectives.losses import masked_mean
from npmatch.types import Batch, NonNegativeFloat, Share, Step, Task, Views


class OpenMatch(Algorithm):
    """One-vs-all detectors of outliers, and FixMatch without a threshold on what they let through.

    The weak views are learnt from too, so that they have a gradient and are always in the joint pass.
    """

    views = Views(weak=2, strong=1, labeled_weak=1)
    settings: ClassVar[dict[str, Any]] = {"training.unlabeled_ratio": 2}  # μ

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters for CIFAR-10; CIFAR-100 has λ_oc 1."""

        entropy_weight: NonNegativeFloat = 0.1  # λ_em, weight of the detectors' entropy on unlabelled images
        consistency_weight: NonNegativeFloat = 0.5  # λ_oc, weight of the difference of the detectors between two views
        unlabeled_weight: NonNegativeFloat = 1.0  # weight of FixMatch's loss of the inliers
        max_outlier: Share = 0.5  # images with a lower probability of being an outlier are inliers
        inliers_from: Share = 10 / 512  # progress from which inliers are learnt from: ten epochs of the paper's 512

    config: Config

    @classmethod
    def make_model(cls, backbone: nn.Module, task: Task, config: Config) -> Model:
        """The backbone with a linear classifier and linear detectors."""
        features, classes = int(backbone.num_features), task.num_classes  # type: ignore[arg-type]
        return Model(backbone, OneVsAllHead(LinearHead(features, classes), linear_detector(features, classes)))

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """The paper's Algorithm 1."""
        c, head = self.config, self.model.head
        assert isinstance(head, OneVsAllHead)
        (u_strong,) = batch.strong
        # Paper: inliers come in batches of their own; here: they are those of the one batch, because which they are
        # changes, and shapes must not.
        f_x, f_x_other, f_weak, f_other, f_strong = self.model.features_together(
            batch.x, *batch.x_weak, *batch.weak, u_strong
        )

        f_labeled, y = torch.cat([f_x, f_x_other]), batch.y.repeat(2)
        loss_x = F.cross_entropy(head(f_labeled), y)
        loss_ova = one_vs_all_loss(head.detect(f_labeled), y)  # Eq. 1

        log_o, log_other = head.detect(f_weak), head.detect(f_other)
        loss_entropy = (detector_entropy(log_o) + detector_entropy(log_other)) / 2  # Eq. 2
        loss_consistency = detector_consistency(log_o, log_other)  # Eq. 3

        with torch.no_grad():
            pseudo = head(f_weak).argmax(-1)
            # Paper: the averaged weights mark the inliers among all images once an epoch; here: the current weights
            # mark those of the batch, because a step sees its batch alone.
            keep = outlier_score(log_o, pseudo) < c.max_outlier
            starts = progress >= c.inliers_from
        # The mean over the inliers, which were a batch of their own; 0 where there are none.
        loss_u = starts * masked_mean(F.cross_entropy(head(f_strong), pseudo, reduction="none"), keep)

        loss = (
            loss_x
            + loss_ova
            + c.entropy_weight * loss_entropy
            + c.consistency_weight * loss_consistency
            + c.unlabeled_weight * loss_u
        )
        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "loss_detector": loss_ova,
            "loss_entropy": loss_entropy,
            "loss_consistency": loss_consistency,
        }
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)
