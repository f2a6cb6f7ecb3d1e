"""SSB: Simple but Strong Baseline for Boosting Performance of Open-Set Semi-Supervised Learning. Fan et al., ICCV 2023.

Idea: outliers with confident pseudo-labels do not harm the classifier, so FixMatch may learn from all images. Heads of
several layers keep classifier and detectors apart, and the detectors also learn from images that they surely reject.

    L = CE(y, p(x)) + λ_u · L_u + L_det
    L_u   = 1/U Σ_b 1(max q_b ≥ τ) · CE(argmax q_b, p(strong(u_b))),   q_b = p(weak(u_b))
    L_det = L_ova + λ_em · L_em + λ_oc · L_oc + λ_neg · L_neg                              at the end of training
    L_ova = mean over weak views of −log o_y  +  mean over weak and strong views and K classes of 1(k ≠ y)·(−log ō_k)
    L_neg = 1/U Σ_b Σ_k 1(o_k(weak(u_b)) ≤ θ) · (−log ō_k(strong(u_b)))

o_k: probability that an image is of class k, by the detector of this class alone; ō_k = 1 − o_k. L_em and L_oc are the
entropy of the detectors and their difference between two weak views of unlabelled images, as in OpenMatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.heads import LinearHead, Model, OneVsAllHead
from npmatch.heads.one_vs_all import INLIER, OUTLIER, detector_consistency, detector_entropy
from npmatch.objectives.losses import one_hot
from npmatch.types import Batch, NonNegativeFloat, Share, Size, Step, Task, Views


class SSB(Algorithm):
    """FixMatch on all images, and one-vs-all detectors with pseudo-negative labels.

    The weak views are learnt from too, so that they have a gradient and are always in the joint pass.
    """

    # Paper: the second weak view is flipped only; here: both are weak views alike, because streams make one kind.
    views = Views(weak=2, strong=1, labeled_weak=1, labeled_strong=2)
    settings: ClassVar[dict[str, Any]] = {"training.unlabeled_ratio": 2}  # μ

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters for CIFAR-10; CIFAR-100 has λ_oc 1."""

        confidence: Share = 0.95  # τ: least confidence of a trusted pseudo-label
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_u, weight of the unlabelled loss of the classifier
        hidden: Size = 1024  # width of the two hidden layers of the classifier and of the detectors
        detectors_from: Share = 475 / 512  # progress from which the detectors' losses reach the backbone
        entropy_weight: NonNegativeFloat = 0.1  # λ_em, weight of the detectors' entropy on unlabelled images
        consistency_weight: NonNegativeFloat = 0.5  # λ_oc, weight of the difference of the detectors between two views
        negative_weight: NonNegativeFloat = 1.0  # λ_neg, weight of the loss of pseudo-negatives
        negative_confidence: Share = 0.01  # θ: highest inlier probability of a pseudo-negative

    config: Config

    @classmethod
    def make_model(cls, backbone: nn.Module, task: Task, config: Config) -> Model:
        """The backbone with a classifier and detectors of three layers each."""
        features, classes = int(backbone.num_features), task.num_classes  # type: ignore[arg-type]
        classifier, detector = (mlp(features, config.hidden, outputs) for outputs in (classes, 2 * classes))
        return Model(backbone, OneVsAllHead(classifier, detector))

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """FixMatch, then the detectors' losses on the same features."""
        c, head = self.config, self.model.head
        assert isinstance(head, OneVsAllHead)
        # Paper: FixMatch and the detectors have batches and passes of their own; here: one joint pass, because all
        # images then share their batch-norm statistics.
        f_x, f_x_other, *f_x_strong, f_weak, f_other, f_strong = self.model.features_together(
            batch.x, *batch.x_weak, *batch.x_strong, *batch.weak, *batch.strong
        )

        f_x_weak, y = torch.cat([f_x, f_x_other]), batch.y.repeat(2)
        loss_x = F.cross_entropy(head(f_x_weak), y)
        with torch.no_grad():
            confidence, pseudo = head(f_weak).softmax(-1).max(-1)
            keep = confidence >= c.confidence
        loss_u = (keep * F.cross_entropy(head(f_strong), pseudo, reduction="none")).mean()  # over all μB

        # Paper: the detectors start at 475 of 512 epochs; here: they learn from the beginning on features without
        # gradient, because weight decay would shrink idle weights to nothing. Until then the rest learns as without.
        starts = (progress >= c.detectors_from).float()
        views = (f_x_weak, torch.cat(f_x_strong), f_weak, f_other, f_strong)
        log_x, log_x_strong, log_weak, log_other, log_strong = (head.detect(gated(f, starts)) for f in views)
        loss_ova = all_negatives_loss(log_x, log_x_strong, y)
        loss_entropy = (detector_entropy(log_weak) + detector_entropy(log_other)) / 2
        loss_consistency = detector_consistency(log_weak, log_other)
        negative = log_weak.detach()[:, INLIER].exp() <= c.negative_confidence  # U K
        loss_negative = -(negative * log_strong[:, OUTLIER]).sum(-1).mean()

        loss_detector = (
            loss_ova
            + c.entropy_weight * loss_entropy
            + c.consistency_weight * loss_consistency
            + c.negative_weight * loss_negative
        )
        loss = loss_x + c.unlabeled_weight * loss_u + loss_detector
        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "loss_detector": loss_ova,
            "loss_entropy": loss_entropy,
            "loss_consistency": loss_consistency,
            "loss_negative": loss_negative,
            "negative_share": negative.float().mean(),
        }
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)


def mlp(num_features: int, hidden: int, outputs: int) -> nn.Sequential:
    """F → hidden → hidden → outputs with ReLU; weights as those of a linear head."""
    widths = (LinearHead(num_features, hidden), LinearHead(hidden, hidden), LinearHead(hidden, outputs))
    return nn.Sequential(widths[0], nn.ReLU(), widths[1], nn.ReLU(), widths[2])


def gated(features: Tensor, gate: Tensor) -> Tensor:
    """The same features; their gradient is multiplied by `gate`, 0-d."""
    return features.detach() + gate * (features - features.detach())


def all_negatives_loss(log_weak: Tensor, log_strong: Tensor, y: Tensor) -> Tensor:
    """L_ova of detectors n 2 K on two weak views and two strong views of the images with labels y n, 0-d."""
    own = one_hot(y, log_weak.shape[-1])
    positive = -(own * log_weak[:, INLIER]).sum(-1).mean()
    negatives = torch.cat([log_weak, log_strong])[:, OUTLIER] * (1 - own).repeat(2, 1)
    return positive - negatives.mean()  # the mean over K, to which the own class contributes 0
