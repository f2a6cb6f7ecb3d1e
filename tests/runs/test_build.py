"""The parts of a run: the labels with which the log measures pseudo-labels."""

import torch

from npmatch.data import ArrayImages, Split
from npmatch.runs.build import diagnostic_labels
from npmatch.types import Dataset, ImageSet


def test_pseudo_labels_of_labelled_images_are_not_judged():
    images = ArrayImages(torch.zeros(6, 1, 8, 8, dtype=torch.uint8))
    labels = torch.tensor([0, 1, 0, 1, -1, -2])
    dataset = Dataset("mine", ("a", "b"), ImageSet(images, labels), None, (0.5,), (0.5,))
    split = Split(torch.tensor([0, 1]), torch.arange(6), torch.arange(0), seed=0, fingerprint="")
    assert diagnostic_labels(dataset, split).tolist() == [-1, -1, 0, 1, -1, -2]
    assert labels.tolist() == [0, 1, 0, 1, -1, -2]
