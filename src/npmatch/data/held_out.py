"""Which images of a split are for what: tests, calibration, and what a model has seen."""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.data.split import Split
from npmatch.data.subset import selected
from npmatch.types import Dataset, ImageSet


def evaluation_set(dataset: Dataset, split: Split) -> ImageSet | None:
    """The test images; where there are none the validation images; else nothing."""
    return test_set(dataset, split) or validation_set(dataset, split)


def test_set(dataset: Dataset, split: Split) -> ImageSet | None:
    """The images for testing alone, less those left out; nothing where there are none."""
    if dataset.test is None or not len(dataset.test):
        return None
    if not len(split.left_out_test):
        return dataset.test
    kept = torch.ones(len(dataset.test), dtype=torch.bool)
    kept[split.left_out_test] = False
    return selected(dataset.test, kept.nonzero().flatten())


def validation_set(dataset: Dataset, split: Split) -> ImageSet | None:
    """The labelled images that were held out of training; nothing where none were."""
    return selected(dataset.train, split.validation) if len(split.validation) else None


def trained_on(split: Split) -> Tensor:
    """The positions of all images that training has seen, labelled or not, sorted."""
    seen: Tensor = torch.unique(torch.cat([split.labeled, split.unlabeled]))
    return seen
