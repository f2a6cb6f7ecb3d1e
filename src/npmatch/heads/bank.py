"""A first-in-first-out memory of representations, of which only the mean is ever read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

_condensed: ContextVar[bool] = ContextVar("condensed", default=False)


@contextmanager
def condensed_banks() -> Iterator[None]:
    """Inside, new banks have length 1: a saved model holds no more, whatever length its settings name."""
    token = _condensed.set(True)
    try:
        yield
    finally:
        _condensed.reset(token)


class Bank(nn.Module):
    """The last Q rows pushed, as a ring buffer with one spare row that takes rejected rows (static shapes)."""

    rows: Tensor  # Q + 1 M; the last row is the spare
    position: Tensor  # 0-d int64: where the next row goes
    filled: Tensor  # 0-d int64: number of rows in use

    def __init__(self, length: int, width: int) -> None:
        """Starts with one random row, as the paper initialises its banks."""
        super().__init__()
        length = 1 if _condensed.get() else length
        self.register_buffer("rows", torch.zeros(length + 1, width))
        self.rows[0] = torch.randn(width)
        self.register_buffer("position", torch.tensor(1 % length))
        self.register_buffer("filled", torch.tensor(1))

    @property
    def length(self) -> int:
        """Q, the number of rows."""
        return self.rows.shape[0] - 1

    @torch.no_grad()
    def push(self, rows: Tensor, keep: Tensor) -> None:
        """Append the rows (n M) where `keep` (n, bool) holds, in order; of more than Q, the newest Q stay."""
        order = keep.long().cumsum(0)  # 1-based rank among the kept
        count = order[-1]
        fits = keep & (order > count - self.length)
        slot = torch.where(fits, (self.position + order - 1) % self.length, self.length)
        self.rows.index_copy_(0, slot, rows.detach().to(self.rows.dtype))
        self.rows[-1].zero_()  # the last rejected row is not part of the state
        self.position.copy_((self.position + count) % self.length)
        self.filled.copy_((self.filled + count).clamp(max=self.length))

    def mean(self) -> Tensor:
        """Mean of the rows in use, M."""
        held = torch.arange(self.length, device=self.rows.device) < self.filled
        return (self.rows[:-1] * held[:, None]).sum(0) / self.filled

    def condensed(self) -> Bank:
        """A bank of length 1 that holds this one's mean: all that prediction needs."""
        return Bank.of(self.mean())

    @staticmethod
    def of(row: Tensor) -> Bank:
        """A bank of length 1 that holds one row, M."""
        bank = Bank(1, len(row)).to(row.device)
        bank.rows[0] = row
        return bank

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Adopts the length of the loaded bank: a saved model holds condensed banks."""
        rows = state_dict.get(prefix + "rows")
        if rows is not None and rows.shape[0] != self.rows.shape[0]:
            self.rows = torch.zeros_like(rows, device=self.rows.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
