"""The sampler as a pure function of (seed, step)."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.data import Sampler
from npmatch.errors import NPMatchError


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**60), st.integers(1, 50), st.integers(1, 50), st.data())
def test_each_epoch_is_a_pass_over_the_set(seed: int, labeled: int, unlabeled: int, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, unlabeled))
    sampler = Sampler(seed, labeled, unlabeled, 4, batch)
    steps = unlabeled // batch
    for epoch in range(3):
        batches = [sampler(epoch * steps + place) for place in range(steps)]
        seen = [index for _, u in batches for index in u.tolist()]
        assert len(seen) == len(set(seen)) == steps * batch  # all of them where the batch divides the set
        assert set(seen) <= set(range(unlabeled))
        for x, u in batches:
            assert x.shape == (4,)
            assert u.shape == (batch,)
            assert x.dtype == u.dtype == torch.int64
            assert 0 <= x.min() <= x.max() < labeled


def test_any_process_draws_any_step_in_any_order() -> None:
    in_order = Sampler(7, 10, 64, 8, 16)
    expected = [in_order(step) for step in range(40)]
    other = Sampler(7, 10, 64, 8, 16)
    for step in random.Random(0).sample(range(40), 40):
        assert all(torch.equal(a, b) for a, b in zip(other(step), expected[step], strict=True))


def test_what_a_caller_does_to_a_batch_changes_no_later_one() -> None:
    sampler = Sampler(0, 4, 8, 2, 4)
    expected = sampler(0)[1].clone()
    sampler(0)[1].zero_()
    assert torch.equal(sampler(0)[1], expected)


def test_seeds_epochs_and_streams_differ() -> None:
    first, second = Sampler(0, 100, 1000, 32, 500), Sampler(1, 100, 1000, 32, 500)
    assert not torch.equal(first(0)[0], second(0)[0])
    assert not torch.equal(first(0)[1], second(0)[1])
    assert not torch.equal(first(0)[0], first(1)[0])
    assert not torch.equal(first(0)[1], first(2)[1])  # the same place of the next epoch
    # The order of one sampler's unlabelled images does not depend on the labelled set, nor the reverse.
    other = Sampler(0, 7, 1000, 64, 500)
    assert torch.equal(first(5)[1], other(5)[1])


def test_labelled_images_are_drawn_evenly_and_with_replacement() -> None:
    sampler = Sampler(0, 10, 10, 64, 1)
    times = Counter(index for step in range(500) for index in sampler(step)[0].tolist())
    # 32,000 draws of 10: each expected 3,200 times, with a deviation of about 54.
    assert max(abs(times[index] - 3200) for index in range(10)) < 300


def test_the_edges() -> None:
    x, u = Sampler(0, 4, 0, 2, 0)(123)
    assert x.shape == (2,)
    assert u.shape == (0,)
    assert u.dtype == torch.int64
    assert Sampler(0, 0, 4, 0, 4)(3)[0].shape == (0,)
    with pytest.raises(NPMatchError, match=r"batch of 9 .* set of 8; lower training\.unlabeled_ratio or training"):
        Sampler(0, 4, 8, 2, 9)
    with pytest.raises(NPMatchError, match="no labelled image"):
        Sampler(0, 0, 8, 2, 4)
