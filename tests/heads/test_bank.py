"""The bank against a plain Python deque."""

from collections import deque

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.heads import Bank, TrustedPoints


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 7),
    st.lists(st.lists(st.booleans(), min_size=1, max_size=12), max_size=8),
    st.integers(0, 99),
)
def test_bank_is_a_fifo_of_the_kept_rows(length, pushes, seed):
    g = torch.Generator().manual_seed(seed)
    bank = Bank(length, 3)
    queue = deque([bank.rows[0].clone()], maxlen=length)
    for keep in pushes:
        rows = torch.randn(len(keep), 3, generator=g)
        bank.push(rows, torch.tensor(keep))
        queue.extend(row for row, kept in zip(rows, keep, strict=True) if kept)
        torch.testing.assert_close(bank.mean(), torch.stack(list(queue)).mean(0))
        held = {tuple(row.tolist()) for row in bank.rows[:-1][: int(bank.filled)]}
        assert held == {tuple(row.tolist()) for row in queue}


def test_a_bank_starts_with_one_normal_row():
    torch.manual_seed(0)
    bank = Bank(9, 2000)
    assert int(bank.filled) == 1
    assert abs(float(bank.mean().mean())) < 0.1
    assert abs(float(bank.mean().std()) - 1) < 0.1


def test_pushed_rows_carry_no_gradient_and_rejected_rows_leave_no_trace():
    bank = Bank(4, 2)
    rows = torch.full((2, 2), float("nan"), requires_grad=True)
    before = bank.mean()
    bank.push(rows, torch.tensor([False, False]))
    assert torch.equal(bank.mean(), before)
    assert not bank.rows.requires_grad
    assert bank.rows.isfinite().all()


def test_a_condensed_bank_has_the_same_mean_and_loads_into_a_full_one():
    bank = Bank(16, 4)
    bank.push(torch.randn(9, 4), torch.ones(9, dtype=torch.bool))
    other = Bank(16, 4)
    other.load_state_dict(bank.condensed().state_dict())
    torch.testing.assert_close(other.mean(), bank.mean())
    assert other.length == 1


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.lists(st.lists(st.booleans(), min_size=1, max_size=12), max_size=6))
def test_trusted_points_are_a_fifo_of_the_kept_images(length, pushes):
    points = TrustedPoints(length, 2)
    queue = deque(maxlen=length)
    seen = 0
    for keep in pushes:
        images = torch.arange(seen, seen + len(keep))
        points.push(images[:, None].expand(-1, 2).float(), images % 3, images, torch.tensor(keep))
        queue.extend(int(i) for i, kept in zip(images, keep, strict=True) if kept)
        seen += len(keep)
        held = points.in_use()
        assert sorted(points.images[:-1][held].tolist()) == sorted(queue)
        assert torch.equal(points.features[:-1][held][:, 0].long(), points.images[:-1][held])
        assert torch.equal(points.labels[:-1][held], points.images[:-1][held] % 3)
