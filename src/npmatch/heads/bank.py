"""First-in-first-out memories: representations of which only the mean is ever read, and trusted images."""

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


class Ring(nn.Module):
    """Slots of a ring buffer of the last Q rows, with one spare slot that takes rejected rows (static shapes)."""

    position: Tensor  # 0-d int64: where the next row goes
    filled: Tensor  # 0-d int64: number of rows in use

    def __init__(self, length: int, filled: int = 0) -> None:
        """`filled` slots are in use from the start."""
        super().__init__()
        self.register_buffer("position", torch.tensor(filled % length))
        self.register_buffer("filled", torch.tensor(filled))

    @property
    def length(self) -> int:
        """Q, the number of slots."""
        raise NotImplementedError

    def take_slots(self, keep: Tensor) -> Tensor:
        """Slots n for n rows of which those where `keep` (n, bool) holds are appended, in order; Q is the spare one.

        Of more than Q, the newest Q stay.
        """
        order = keep.long().cumsum(0)  # 1-based rank among the kept
        count = order[-1]
        fits = keep & (order > count - self.length)
        slot = torch.where(fits, (self.position + order - 1) % self.length, self.length)
        self.position.copy_((self.position + count) % self.length)
        self.filled.copy_((self.filled + count).clamp(max=self.length))
        return slot

    def in_use(self) -> Tensor:
        """Q, bool: which slots are in use."""
        return torch.arange(self.length, device=self.filled.device) < self.filled


class TrustedPoints(Ring):
    """The last Q unlabelled images that got a trusted pseudo-label, with their features: further context points."""

    features: Tensor  # Q + 1 F; the last row is the spare
    labels: Tensor  # Q + 1, int64: pseudo-labels
    images: Tensor  # Q + 1, int64: positions in the unlabelled set

    def __init__(self, length: int, num_features: int) -> None:
        """Starts empty."""
        super().__init__(length)
        self.register_buffer("features", torch.zeros(length + 1, num_features))
        self.register_buffer("labels", torch.zeros(length + 1, dtype=torch.int64))
        self.register_buffer("images", torch.zeros(length + 1, dtype=torch.int64))

    @property
    def length(self) -> int:
        """Q, the number of slots."""
        return self.labels.shape[0] - 1

    @torch.no_grad()
    def push(self, features: Tensor, labels: Tensor, images: Tensor, keep: Tensor) -> None:
        """Append the points, n F, n and n, where `keep` (n, bool) holds."""
        slot = self.take_slots(keep)
        for buffer, rows in ((self.features, features), (self.labels, labels), (self.images, images)):
            buffer.index_copy_(0, slot, rows.to(buffer.dtype))
            buffer[-1].zero_()  # the last rejected row is not part of the state


class Bank(Ring):
    """The last Q rows pushed; the last row of the buffer is the spare."""

    rows: Tensor  # Q + 1 M

    def __init__(self, length: int, width: int) -> None:
        """Starts with one random row, as the paper initialises its banks."""
        length = 1 if _condensed.get() else length
        super().__init__(length, filled=1)
        self.register_buffer("rows", torch.zeros(length + 1, width))
        self.rows[0] = torch.randn(width)

    @property
    def length(self) -> int:
        """Q, the number of rows."""
        return self.rows.shape[0] - 1

    @torch.no_grad()
    def push(self, rows: Tensor, keep: Tensor) -> None:
        """Append the rows (n M) where `keep` (n, bool) holds, in order; of more than Q, the newest Q stay."""
        slot = self.take_slots(keep)
        self.rows.index_copy_(0, slot, rows.detach().to(self.rows.dtype))
        self.rows[-1].zero_()  # the last rejected row is not part of the state

    def mean(self) -> Tensor:
        """Mean of the rows in use, M."""
        return (self.rows[:-1] * self.in_use()[:, None]).sum(0) / self.filled

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
