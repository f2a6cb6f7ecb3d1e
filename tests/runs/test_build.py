"""The parts of a run: the labels with which the log measures pseudo-labels, and norms on several ranks."""

import pytest
import torch

from npmatch.data import ArrayImages, Split
from npmatch.errors import NPMatchError
from npmatch.runs.build import diagnostic_labels
from npmatch.types import Dataset, ImageSet
from tiny import train_tiny


def test_pseudo_labels_of_labelled_images_are_not_judged():
    images = ArrayImages(torch.zeros(6, 1, 8, 8, dtype=torch.uint8))
    labels = torch.tensor([0, 1, 0, 1, -1, -2])
    dataset = Dataset("mine", ("a", "b"), ImageSet(images, labels), None, (0.5,), (0.5,))
    split = Split(torch.tensor([0, 1]), torch.arange(6), torch.arange(0), seed=0, fingerprint="")
    assert diagnostic_labels(dataset, split).tolist() == [-1, -1, 0, 1, -1, -2]
    assert labels.tolist() == [0, 1, 0, 1, -1, -2]


def test_norms_of_one_rank_cannot_be_shared_between_views(one_rank, tmp_path):
    with pytest.raises(NPMatchError, match=r"training\.sync_norm=false: algorithm\.weak_norm=shared"):
        train_tiny(tmp_path / "run", training__sync_norm=False, algorithm__weak_norm="shared")
