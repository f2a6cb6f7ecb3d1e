"""ResizeMix against loops, torch's interpolation and SciPy's distributions."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from npmatch.objectives import resize_mix
from npmatch.objectives.resize_mix import Box, Span, draw_box, draw_each, paste, shuffle_within


def span(start: int, stop: int, size: int) -> Span:
    return Span(torch.tensor(start), torch.tensor(stop), size)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pasting_is_that_of_loops_and_labels_mix_by_counted_pixels(data):
    sizes = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    ends = [sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in sizes]
    box = Box(*(span(*end, size) for end, size in zip(ends, sizes, strict=True)))
    images, pasted = torch.zeros(2, 3, *sizes), torch.rand(2, 3, *sizes) + 1
    found = paste(images, pasted, box)
    counted = 0
    for row in range(sizes[0]):
        for column in range(sizes[1]):
            if not (ends[0][0] <= row < ends[0][1] and ends[1][0] <= column < ends[1][1]):
                assert not found[:, :, row, column].any()
                continue
            source = []
            for place, (start, stop), size in zip((row, column), ends, sizes, strict=True):
                kept = max(1, int(0.9 * size))
                source.append((size - kept) // 2 + (place - start) * kept // (stop - start))
            assert torch.equal(found[:, :, row, column], pasted[:, :, source[0], source[1]])
            counted += 1
    assert box.kept_share().item() == pytest.approx(1 - counted / (sizes[0] * sizes[1]))


@pytest.mark.parametrize("side", [8, 32])
def test_pasting_is_torchs_nearest_neighbour_of_the_centre(side):
    images, pasted = torch.rand(1, 3, side, side), torch.rand(1, 3, side, side)
    kept = int(0.9 * side)
    margin = (side - kept) // 2
    centre = pasted[:, :, margin : margin + kept, margin : margin + kept]
    for length in range(1, side + 1):
        expected = images.clone()
        expected[:, :, :length, side - length :] = F.interpolate(centre, (length, length), mode="nearest")
        found = paste(images, pasted, Box(span(0, length, side), span(side - length, side, side)))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("alpha", [1.0, 16.0])
def test_sides_of_boxes_are_roots_of_beta_draws(monkeypatch, alpha):
    size = 10**6
    images = torch.zeros(()).expand(1, 1, size, size)
    monkeypatch.setattr(resize_mix.torch, "randint", lambda high, *args, **kwargs: torch.tensor(high // 2))  # unclipped
    torch.manual_seed(0)
    boxes = [draw_box(images, alpha) for _ in range(400)]
    sides = [int(box.rows.stop - box.rows.start) / size for box in boxes]
    assert sides == [int(box.columns.stop - box.columns.start) / size for box in boxes]
    draws = [((side - 0.1) / 0.7) ** 2 for side in sides]
    assert stats.kstest(draws, stats.beta(alpha, alpha).cdf).pvalue > 0.01


def test_boxes_have_uniform_centres_and_are_clipped_to_the_image():
    torch.manual_seed(0)
    images, middles = torch.zeros(1, 1, 8, 1000), []
    for _ in range(400):
        for part in draw_box(images, 1.0):
            assert 0 <= part.start <= part.stop <= part.size
        columns = draw_box(images, 1e6).columns  # a side of 0.1 + 0.7·√½ of the image, but for clipping
        middles.append((columns.start == 0, columns.stop == 1000))
    half = (0.1 + 0.7 * 0.5**0.5) / 2
    for clipped in zip(*middles, strict=True):
        assert sum(map(int, clipped)) / 400 == pytest.approx(half, abs=0.08)


def test_one_pixel_takes_nothing():
    images = torch.rand(2, 5, 1, 1)  # activations of a frozen network
    for _ in range(20):
        box = draw_box(images, 1.0)
        assert torch.equal(paste(images, torch.zeros_like(images), box), images)
        assert box.kept_share() == 1


def test_members_are_shuffled_among_themselves():
    torch.manual_seed(0)
    member = torch.tensor([False, True, True, False, True])
    found = Counter(tuple(shuffle_within(member)[member].tolist()) for _ in range(600))
    assert len(found) == 6
    assert all(sorted(order) == [1, 2, 4] for order in found)
    assert stats.chisquare(list(found.values())).pvalue > 0.01
    shuffled = shuffle_within(torch.zeros(3, dtype=torch.bool))
    assert shuffled.shape == (3,)
    assert ((shuffled >= 0) & (shuffled < 3)).all()


def test_each_row_draws_one_of_the_columns_it_allows():
    torch.manual_seed(0)
    allowed = torch.tensor([[True, False, True, True], [False, True, False, False], [False] * 4])
    draws = torch.stack([draw_each(allowed) for _ in range(600)])
    found = Counter(draws[:, 0].tolist())
    assert sorted(found) == [0, 2, 3]
    assert stats.chisquare(list(found.values())).pvalue > 0.01
    assert draws[:, 1:].unique(dim=0).tolist() == [[1, 0]]
