"""The labelled images that lie nearest to an image, where the model's own features measure nearness."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from npmatch.data import Split
from npmatch.data.subset import SelectedImages
from npmatch.draws import mix
from npmatch.passes import describe_store
from npmatch.predict import Classifier
from npmatch.types import ImageSet

MOST = 20_000  # labelled images that are compared with; more are drawn from, so that memory stays bounded
BATCH = 64


@dataclass(frozen=True)
class Neighbours:
    """Labelled training images with their features."""

    positions: Tensor  # n, int64: in the training set
    labels: Tensor  # n, int64
    features: Tensor  # n F, of length 1

    def nearest(self, features: Tensor, count: int) -> list[tuple[int, int, float]]:
        """(position, label, cosine similarity) of the images nearest to one image's features F, nearest first."""
        likeness = self.features @ normalize(features, dim=0)
        found = likeness.topk(min(count, len(likeness)))
        index = found.indices
        columns = (self.positions[index].tolist(), self.labels[index].tolist(), found.values.tolist())
        return list(zip(*columns, strict=True))


def labeled_neighbours(classifier: Classifier, train: ImageSet, split: Split) -> Neighbours:
    """The images a run learned its labels from."""
    positions = split.labeled
    if len(positions) > MOST:
        chosen = torch.randperm(len(positions), generator=torch.Generator().manual_seed(mix(split.seed, "neighbours")))
        positions = positions[chosen[:MOST]].sort().values
    images = SelectedImages(train.images, positions)
    _, features = describe_store(classifier.model, images, classifier.card, classifier.device, BATCH, workers=0)
    return Neighbours(positions, train.labels[positions], normalize(features, dim=1))
