"""Long-tailed data: published, balanced data sets cut so that each class has fewer images than the one before.

With γ = `imbalance`, class k of K has n_k = n_1 · γ^(−k / (K − 1)) images, k = 0 … K − 1, rounded down and at least
one. The literature states n_1 for labelled and for unlabelled images (N_1 and M_1).
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import torch

from npmatch.data.config import DataConfig
from npmatch.data.copies import Groups
from npmatch.data.split import Split, leave_out
from npmatch.data.stratify import make_split
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.types import Dataset, ImageSet

BALANCED = 2.0  # largest ratio between the numbers of labels of two classes that are called balanced


def is_balanced(labels: Collection[int]) -> bool:
    """Whether the classes have similar numbers of labels, which distribution alignment assumes."""
    return class_ratio(labels) <= BALANCED


def class_ratio(counts: Collection[int]) -> float:
    """How many times as many images the largest class has as the smallest one; classes without any do not count."""
    return max(counts) / min(count for count in counts if count)


def long_tailed(head: int, imbalance: float, classes: int) -> list[int]:
    """The number of images of each class, from `head` down to `head` / `imbalance`."""
    # 1e-9: 500 images at γ = 50 are 10 in the last class, whatever the rounding of the power.
    return [max(1, math.floor(head * imbalance ** (-k / (classes - 1)) + 1e-9)) for k in range(classes)]


def labels_per_class(config: DataConfig, classes: int) -> list[int] | None:
    """The number of labels of each class in a long-tailed data set; None for other data sets."""
    if config.labels_head is None:
        if config.imbalance != 1:
            raise NPMatchError(
                f"data.imbalance={config.imbalance:g}: give data.labels_head, the labels of its first class, too"
            )
        if config.unlabeled_head is not None:
            raise NPMatchError(f"data.unlabeled_head={config.unlabeled_head}: give data.labels_head as well")
        return None
    if config.labels is not None:
        raise NPMatchError(
            f"data.labels={config.labels} and data.labels_head={config.labels_head}: give the number of all labels, or "
            "that of the first class (data.labels=none)"
        )
    return long_tailed(config.labels_head, config.imbalance, classes)


def unlabeled_per_class(config: DataConfig, classes: int) -> list[int] | None:
    """The number of unlabelled images of each class, besides the labelled ones; None: all that there are."""
    head = config.unlabeled_head
    if head is None:
        if config.unlabeled_distribution != "same":
            raise NPMatchError(
                f"data.unlabeled_distribution={config.unlabeled_distribution}: give data.unlabeled_head, the number of "
                "unlabelled images of the largest class, as well"
            )
        return None
    if config.unlabeled_distribution == "uniform":
        return [head] * classes
    counts = long_tailed(head, config.imbalance, classes)
    return counts[::-1] if config.unlabeled_distribution == "reversed" else counts


def draw_split(
    config: DataConfig, dataset: Dataset, seed: int, left_out: torch.Tensor | None = None, copies: Groups = ()
) -> Split:
    """The split that a configuration describes, before `thin_unlabeled`; see `make_split`."""
    labels = labels_per_class(config, len(dataset.class_names)) or config.labels
    return make_split(dataset, labels, seed, config.validation, config.include_labeled, left_out, copies)


def thin_unlabeled(config: DataConfig, dataset: Dataset, split: Split) -> Split:
    """`split` with as many unlabelled images of each class as the configuration says; the others are left out.

    Images whose class is not known stay in the unlabelled set.
    """
    wanted = unlabeled_per_class(config, len(dataset.class_names))
    if wanted is None:
        return split
    rng = np.random.default_rng(mix(split.seed, "long tail"))
    others = split.unlabeled[~torch.isin(split.unlabeled, split.labeled)]
    surplus = []
    for label, (name, count) in enumerate(zip(dataset.class_names, wanted, strict=True)):
        images = others[dataset.train.labels[others] == label]
        if len(images) < count:
            raise NPMatchError(
                f"class '{name}' has {len(images)} images that are not labelled, but {count} are wanted; lower "
                "data.unlabeled_head or data.labels_head"
            )
        surplus.append(images[torch.from_numpy(rng.permutation(len(images)))[count:]])
    return leave_out(split, dataset, torch.cat(surplus), split.left_out_test)


def largest_class_ratio(dataset: Dataset, split: Split, held_out: ImageSet) -> float:
    """How uneven the classes are: the larger `class_ratio` of labelled and held-out images."""
    parts = (dataset.train.labels[split.labeled], held_out.labels)
    return max(class_ratio(torch.bincount(labels).tolist()) for labels in parts)
