"""SemCo: All Labels Are Not Created Equal. Enhancing Semi-supervision via Label Grouping and Co-training.
Nassar et al., CVPR 2021.

Idea: two classifiers share the features: one predicts the class, the other an embedding of the class's name. Each
labels unlabelled images for the other; the second also labels those that lie between classes of similar meaning.

    L = CE(y, p(x)) + λ_u · L_u + λ · (d(e_y, s(x)) + λ_u · L_s),   d(a, b) = 1 − cos(a, b)
    L_u = 1/U Σ_b  1(max p(weak_b) ≥ τ) · CE(ŷ_p, p(strong_b))  +  1(c_b ≥ τ_s) · CE(ŷ_s, p(strong_b))
    L_s = 1/U Σ_b  1(max p(weak_b) ≥ τ) · d(e_{ŷ_p}, s(strong_b))  +  1(c_b ≥ τ_s) · d(ê_b, s(strong_b))

p: softmax over classes. s: a point in the space of class names, where class k is at e_k and classes whose names are
close form a group. c_b: the largest mean cosine of s(weak_b) to a group's classes; ŷ_s: the nearest class of that
group; ê_b: the mean of the group's e_k, weighted by the softmax of their cosines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from npmatch.algorithms.base import Algorithm
from npmatch.algorithms.label_embeddings import load_label_embeddings
from npmatch.heads import WeakNorm
from npmatch.types import Batch, NonNegativeFloat, Share, Size, Step, Task

Cosine = Annotated[float, Field(ge=-1, le=1)]
CosineDistance = Annotated[float, Field(gt=0, le=2)]


class SemCo(Algorithm):
    """Co-training of a softmax classifier and a classifier in the space of class names.

    The softmax classifier predicts: its probabilities are what the paper reports, and a saved model then needs no
    embeddings.
    """

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters."""

        confidence: Share = 0.95  # τ, confidence threshold of the softmax classifier
        similarity: Cosine = 0.7  # τ_s, cosine threshold of the semantic classifier
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_u, weight of the unlabelled losses
        semantic_weight: NonNegativeFloat = 3.0  # λ, weight of the cosine losses
        group_distance: CosineDistance = 0.2  # ε: classes closer than this in cosine distance are in one group
        hidden: Size = 2048  # width of the hidden layer of the semantic classifier
        own_labels: bool = True  # each classifier learns from its own pseudo-labels too; false: only from the other's
        label_embeddings: str | None = None  # file of embeddings of the class names; None: the one in the package
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running

    config: Config
    embeddings: Tensor  # K D: e_k, each of length 1
    groups: Tensor  # K K: 1 / size of the group where two classes share one, else 0

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the semantic classifier and groups the classes."""
        super().__init__(backbone, task, config)
        c = self.config
        # Paper: ConceptNet Numberbatch; here: vectors of a sentence encoder unless a file is given, because they fit
        # into the package and names of several words need no rules. The file can be a Numberbatch text.
        embeddings = spread(load_label_embeddings(task.class_names, c.label_embeddings))
        self.register_buffer("embeddings", embeddings)
        self.register_buffer("groups", group_classes(embeddings, c.group_distance))
        features = int(backbone.num_features)  # type: ignore[arg-type]
        self.semantic = nn.Sequential(
            nn.Linear(features, c.hidden), nn.ReLU(), nn.Linear(c.hidden, embeddings.shape[1])
        )

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """Labelled losses, pseudo-labels of both classifiers on weak views, losses of both on strong views."""
        c, head = self.config, self.model.head
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)

        loss_x = F.cross_entropy(head(f_x), batch.y)
        loss_s_x = cosine_distance(self.embeddings[batch.y], self.semantic(f_x)).mean()

        with torch.no_grad():
            confidence, pseudo = head(f_weak).softmax(-1).max(-1)
            similarity, pseudo_s, target_s = self.semantic_label(self.semantic(f_weak))
            keep, keep_s = confidence >= c.confidence, similarity >= c.similarity

        logits_strong, s_strong = head(f_strong), self.semantic(f_strong)
        # Co-training: each classifier's labels teach the other.
        each_u = keep_s * F.cross_entropy(logits_strong, pseudo_s, reduction="none")
        each_s = keep * cosine_distance(self.embeddings[pseudo], s_strong)
        if c.own_labels:
            each_u = each_u + keep * F.cross_entropy(logits_strong, pseudo, reduction="none")
            each_s = each_s + keep_s * cosine_distance(target_s, s_strong)
        loss_u, loss_s_u = each_u.mean(), each_s.mean()

        loss_s = loss_s_x + c.unlabeled_weight * loss_s_u
        loss = loss_x + c.unlabeled_weight * loss_u + c.semantic_weight * loss_s
        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "loss_semantic_labeled": loss_s_x,
            "loss_semantic_unlabeled": loss_s_u,
            "trusted_softmax": keep.float().mean(),
            "trusted_semantic": keep_s.float().mean(),
            "agreement": (pseudo == pseudo_s).float().mean(),
        }
        chosen = torch.where(keep, pseudo, pseudo_s)
        return Step(loss, {name: value.detach() for name, value in logs.items()}, chosen, keep | keep_s)

    def semantic_label(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pseudo-labels of points U D: similarity c U to the best group, its nearest class ŷ_s U, the target ê U D."""
        cosines = F.normalize(s, dim=-1) @ self.embeddings.T  # U K
        # Softmax of cosines cannot come near 0.95, so confidence is the cosine itself (0.7), as in the authors' code.
        similarity, of_group = (cosines @ self.groups).max(-1)
        weights = cosines.masked_fill(self.groups[of_group] == 0, -torch.inf).softmax(-1)
        return similarity, weights.argmax(-1), weights @ self.embeddings


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """1 − cos over the last dimension, n D and n D → n."""
    return 1 - F.cosine_similarity(a, b, dim=-1)


def spread(embeddings: Tensor) -> Tensor:
    """K D → K D of length 1, with the mean over the classes subtracted."""
    # Paper: the vectors as they are; here: less their mean, because names of one kind ("one", "two", "three") have
    # cosines near 0.7, so that a point between all classes would have cosines above 0.7 to each of them.
    unit = F.normalize(embeddings.float(), dim=-1)
    return F.normalize(unit - unit.mean(0), dim=-1)


def group_classes(embeddings: Tensor, distance: float) -> Tensor:
    """K K: 1 / group size where two classes are of one group, by DBSCAN on cosine distance."""
    from sklearn.cluster import DBSCAN

    found = DBSCAN(eps=distance, min_samples=1, metric="cosine").fit(embeddings.double().numpy()).labels_
    group = torch.as_tensor(found)
    together = (group[:, None] == group).float()
    return together / together.sum(-1, keepdim=True)
