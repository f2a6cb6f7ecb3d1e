"""Labels to start with: a few unlabelled images of each class, which the clusters of pretrained features are sure of.

Four labelled images of a class are seldom typical of it. The clusters of all images' features show which images are:
with 4 labels per class, the surest twenty of a cluster nearly all belong to its class (docs/results.md). Training takes
them for labelled ones. Neither the split nor the saved model knows of them: to their user they stay unlabelled.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from npmatch.algorithms import find_algorithm
from npmatch.baselines import surest
from npmatch.config.tree import Config
from npmatch.data import Dataset, Split
from npmatch.distributed.ranks import on_rank_zero
from npmatch.errors import NPMatchError
from npmatch.runs.features import view_activations
from npmatch.training import Display


def wants_cluster_labels(config: Config) -> bool:
    """Whether training starts with such labels: asked for, and by a method that learns from unlabelled images."""
    return config.training.cluster_labels > 0 and find_algorithm(config.name).views.uses_unlabeled


def with_cluster_labels(
    config: Config, dataset: Dataset, split: Split, used: Tensor, features: Tensor, display: Display
) -> tuple[Dataset, Split]:
    """The data set and the split with more labelled images; `features` n D are those of the images at `used` n."""
    y = torch.full_like(used, -1)
    is_labeled = torch.isin(used, split.labeled)
    y[is_labeled] = dataset.train.labels[used[is_labeled]]
    # Rank zero decides, as the last bit of a feature may differ from machine to machine.
    rows, found = on_rank_zero(lambda: surest(features, y, config.training.cluster_labels))
    display.say(
        f"labels from clusters of the pretrained features: {len(rows)} unlabelled images are learnt as labelled"
    )
    labels = dataset.train.labels.clone()
    labels[used[rows]] = found
    labeled = torch.cat([split.labeled, used[rows]]).sort().values
    return replace(dataset, train=replace(dataset.train, labels=labels)), replace(split, labeled=labeled)


def pretrained_views(
    config: Config, dataset: Dataset, used: Tensor, device: torch.device, folder: Path | None, display: Display
) -> Tensor:
    """Activations n D of a weak view of the images at `used`, by the network from which training starts."""
    if not config.backbone.pretrained:
        raise NPMatchError(
            f"training.cluster_labels={config.training.cluster_labels}: needs learnt features; set "
            "backbone.pretrained=true, or training.cluster_labels=0"
        )
    frozen = replace(config, backbone=replace(config.backbone, frozen=True, cached_views=1))
    return view_activations(frozen, dataset, used, device, folder, display).weak[0]
