"""Muon: filters of convolutions are turned by the orthogonal matrix nearest to their momentum (Jordan et al., 2024).

All directions of a filter bank W, a matrix with a row for each filter, are learnt at the same speed, also those with
small gradients. W is followed by a batch norm, so only its direction matters: its length is kept, and the learning rate
η is the angle in radians by which a step turns it.

    M ← μ·M + G,   O = orthogonal(G + μ·M),   W ← |W| · N(N(W) − η·N(O))                  N: divide by the length
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# Jordan's polynomial a·x + b·x³ + c·x⁵ takes singular values from (0, 1] to about 1 in five steps.
A, B, C = 3.4445, -4.7750, 2.0315
STEPS = 5
MOST = 2**22  # numbers of the matrices of a set, so that a wide network's do not fill the memory


class Muon(torch.optim.Optimizer):
    """Turns filters O I H W; every group's `lr` is an angle, a 0-d tensor."""

    found_inf: Tensor  # 0-d: where it is 1, a step changes nothing

    def __init__(self, groups: Sequence[dict[str, Any]], momentum: float) -> None:
        """The momenta of a group's banks are stored together and orthogonalised together, in sets of at most MOST."""
        super().__init__(groups, {})
        self.momentum = momentum
        self.sets = [Set(group["lr"], banks) for group in self.param_groups for banks in divide(group["params"])]
        for one in self.sets:
            for p, m in zip(one.banks, one.split(one.momenta), strict=True):
                self.state[p]["momentum_buffer"] = m

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step down the gradients."""
        bad = self.found_inf > 0
        for one in self.sets:
            if one.banks[0].grad is None:  # another network may have none
                continue
            g, m = one.join([p.grad for p in one.banks]), one.momenta  # type: ignore[misc]
            m.copy_(torch.where(bad, m, self.momentum * m + g))
            o = orthogonal(one.matrices(g + self.momentum * m))
            w = one.matrices(one.join(one.banks))
            length = norm(w)
            turned = w / length - one.angle * o / norm(o)
            new = torch.where(bad, w, turned * (length / norm(turned)))
            torch._foreach_copy_(list[Tensor](one.banks), one.split(one.numbers(new)))


class Set:
    """Filter banks that are turned together: few operations on large tensors, where many on small ones take longer.

    Their numbers stand one after the other, in the order of channels-last memory and with a zero behind the last, or as
    matrices n R C, R ≤ C, with a row for each filter (or for each input, if there are more filters) and zeros around.
    """

    def __init__(self, angle: Tensor, banks: Sequence[nn.Parameter]) -> None:
        self.angle, self.banks = angle, list(banks)
        self.sizes = [p.numel() for p in banks]
        self.zero = torch.zeros(1, dtype=angle.dtype, device=angle.device)
        self.momenta = self.join([torch.zeros_like(p) for p in banks])
        last = sum(self.sizes)
        rows, columns = map(max, zip(*(matrix_sides(p) for p in banks), strict=True))
        places = torch.full((len(banks), rows, columns), last, dtype=torch.int32)
        for place, bank, part in zip(places, banks, torch.split(torch.arange(last), self.sizes), strict=True):
            matrix = part.view(len(bank), -1)
            r, c = matrix_sides(bank)
            place[:r, :c] = matrix if matrix.shape == (r, c) else matrix.T
        entries = torch.empty(last + 1, dtype=torch.int32)
        entries[places.flatten()] = torch.arange(places.numel(), dtype=torch.int32)
        self.places, self.entries = places.to(angle.device), entries[:last].to(angle.device)

    def join(self, banks: Sequence[Tensor]) -> Tensor:
        """All numbers of banks O I H W, and the zero."""
        return torch.cat([*(bank.permute(0, 2, 3, 1).flatten() for bank in banks), self.zero])

    def split(self, numbers: Tensor) -> list[Tensor]:
        """Views of the numbers, with the zero or without it, as banks O I H W."""
        parts = torch.split(numbers[: sum(self.sizes)], self.sizes)
        shapes = [bank.permute(0, 2, 3, 1).shape for bank in self.banks]
        return [part.view(shape).permute(0, 3, 1, 2) for part, shape in zip(parts, shapes, strict=True)]

    def matrices(self, numbers: Tensor) -> Tensor:
        """The numbers as matrices."""
        return numbers.index_select(0, self.places.flatten()).view(self.places.shape)

    def numbers(self, matrices: Tensor) -> Tensor:
        """The numbers of matrices."""
        return matrices.flatten().index_select(0, self.entries)


def matrix_sides(bank: Tensor) -> tuple[int, int]:
    """R and C of a bank's matrix."""
    filters, inputs = len(bank), bank[0].numel()
    return min(filters, inputs), max(filters, inputs)


def divide(banks: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The banks in sets of like sizes, whose matrices with the zeros around them have at most MOST numbers."""
    chosen: list[nn.Parameter] = []
    rows = columns = 0
    for bank in sorted(banks, key=matrix_sides, reverse=True):
        r, c = matrix_sides(bank)
        rows, columns = max(rows, r), max(columns, c)
        if chosen and (len(chosen) + 1) * rows * columns > MOST:
            yield chosen
            chosen, rows, columns = [], r, c
        chosen.append(bank)
    if chosen:
        yield chosen


def norm(m: Tensor) -> Tensor:
    """The length of each matrix, n 1 1; never 0."""
    length: Tensor = torch.linalg.vector_norm(m, dim=(1, 2), keepdim=True)
    return length.clamp(min=1e-12)


def orthogonal(m: Tensor) -> Tensor:
    """Matrices n R C, R ≤ C: the same singular vectors, with singular values of about 1.

    Newton–Schulz, X ← (A + B·G + C·G²) X with G = X Xᵀ. All that an iteration needs is the small matrix G, so the
    polynomials are multiplied up and meet X once at the end.
    """
    m = m / norm(m)
    one = A * torch.eye(m.shape[1], device=m.device, dtype=m.dtype)
    with full_precision():
        g = m @ m.mT
        product = polynomial = torch.baddbmm(one + B * g, g, g, alpha=C)
        for _ in range(STEPS - 1):
            g = polynomial @ g @ polynomial
            polynomial = torch.baddbmm(one + B * g, g, g, alpha=C)
            product = polynomial @ product
        return product @ m


@contextmanager
def full_precision() -> Iterator[None]:
    """Context without TF32, whose rounding of G would drown the small singular values."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
