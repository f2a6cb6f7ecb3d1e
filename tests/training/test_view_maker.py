"""The views of a batch: further views of labelled images are drawn last, so that all others stay as they were."""

import torch

from npmatch.augment import AugmentConfig, make_policy
from npmatch.data import RawBatch
from npmatch.training import ViewMaker
from npmatch.types import Views

MEAN = STD = (0.5,)


def batch_with(**labeled):
    pixels = torch.randint(0, 256, (12, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    rows = torch.arange(4)
    raw = RawBatch(pixels[:4], rows % 2, pixels[4:], torch.arange(8), rows)
    torch.manual_seed(0)
    return ViewMaker(make_policy(AugmentConfig(padding=1), (1, 8, 8), MEAN), Views(**labeled), MEAN, STD)(raw)


def test_further_views_of_labelled_images_change_no_other_view():
    plain, more = batch_with(), batch_with(labeled_weak=1, labeled_strong=1)
    assert (plain.x_weak, plain.x_strong) == ((), ())
    for one, other in zip((plain.x, *plain.weak, *plain.strong), (more.x, *more.weak, *more.strong), strict=True):
        assert torch.equal(one, other)
    (x_weak,), (x_strong,) = more.x_weak, more.x_strong
    assert x_weak.shape == x_strong.shape == more.x.shape
    assert not torch.equal(x_weak, more.x)
    assert not torch.equal(x_strong, x_weak)
