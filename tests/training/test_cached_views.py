"""Views chosen among activations that were computed before training."""

import torch

from npmatch.data import RawBatch
from npmatch.training.cached_views import CachedViews, rows_as_images, rows_of
from npmatch.types import Views


def activations(views: int, images: int, first: float) -> torch.Tensor:
    """V N D whose values tell their view and their image: first + 100·view + image."""
    values = first + 100 * torch.arange(views)[:, None] + torch.arange(images)
    return values[:, :, None].expand(-1, -1, 3).half()


def test_rows_travel_as_images():
    rows = torch.tensor([0, 255, 256, 70_000])
    assert torch.equal(rows_of(rows_as_images(70_001).take(rows)), rows)


def test_each_image_gets_views_of_its_own():
    make_views = CachedViews(activations(2, 50, 1), activations(4, 50, 1001), Views(weak=2, strong=1))
    index = torch.arange(50).flip(0)
    images = rows_as_images(50)
    torch.manual_seed(0)
    batch = make_views(
        RawBatch(images.take(index[:8]), torch.zeros(8, dtype=torch.long), images.take(index), index, index[:8])
    )
    assert batch.x.shape == (8, 3, 1, 1)
    assert batch.x.dtype == torch.float32
    assert (len(batch.weak), len(batch.strong)) == (2, 1)
    for view, first, number in ((batch.weak[0], 1, 2), (batch.weak[1], 1, 2), (batch.strong[0], 1001, 4)):
        value = (view[:, 0, 0, 0] - first).long()
        assert torch.equal(value % 100, index)
        assert set((value // 100).tolist()) == set(range(number))
    assert not torch.equal(batch.weak[0], batch.weak[1])


def test_further_views_of_labelled_images_change_no_other_view():
    images, index = rows_as_images(50), torch.arange(50)
    raw = RawBatch(images.take(index[:8]), torch.zeros(8, dtype=torch.long), images.take(index), index, index[:8])

    def batch_with(**labeled):
        torch.manual_seed(0)
        return CachedViews(activations(2, 50, 1), activations(4, 50, 1001), Views(**labeled))(raw)

    plain, more = batch_with(), batch_with(labeled_weak=1, labeled_strong=2)
    assert (plain.x_weak, plain.x_strong) == ((), ())
    for one, other in zip((plain.x, *plain.weak, *plain.strong), (more.x, *more.weak, *more.strong), strict=True):
        assert torch.equal(one, other)
    assert torch.equal((more.x_weak[0][:, 0, 0, 0] - 1).long() % 100, index[:8])
    assert [view.shape for view in more.x_strong] == [(8, 3, 1, 1)] * 2
