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


class Muon(torch.optim.Optimizer):
    """Turns filters O I H W; every group's `lr` is an angle, a 0-d tensor."""

    found_inf: Tensor  # 0-d: where it is 1, a step changes nothing

    def __init__(self, groups: Sequence[dict[str, Any]], momentum: float) -> None:
        """Banks of one shape are stored together, their momentum included, and orthogonalised together."""
        super().__init__(groups, {})
        self.momentum = momentum
        self.sets: list[tuple[dict[str, Any], list[nn.Parameter], Tensor]] = []  # group, banks, momentum n R C
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                by_shape.setdefault(p.shape, []).append(p)
            for banks in by_shape.values():
                momenta = torch.zeros_like(as_matrices(banks))
                self.sets.append((group, banks, momenta))
                for p, m in zip(banks, momenta, strict=True):
                    self.state[p]["momentum_buffer"] = as_bank(m, p)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step down the gradients."""
        bad = self.found_inf > 0
        directions, sets = [], [one for one in self.sets if one[1][0].grad is not None]  # another network may have none
        for _, banks, momenta in sets:
            g = as_matrices([p.grad for p in banks])  # type: ignore[misc]
            momenta.copy_(torch.where(bad, momenta, self.momentum * momenta + g))
            directions.append(g + self.momentum * momenta)
        for (group, banks, _), o in zip(sets, orthogonal(directions) if sets else [], strict=True):
            w = as_matrices(banks)
            length = norm(w)
            turned = w / length - group["lr"] * o / norm(o)
            new = torch.where(bad, w, turned * (length / norm(turned)))
            torch._foreach_copy_(list[Tensor](banks), [as_bank(m, p) for m, p in zip(new, banks, strict=True)])


def as_matrices(banks: Sequence[Tensor]) -> Tensor:
    """Banks O I H W of one shape as n R C, a row for each filter, in the order of channels-last memory."""
    return torch.stack([bank.permute(0, 2, 3, 1).flatten(1) for bank in banks])


def as_bank(matrix: Tensor, like: Tensor) -> Tensor:
    """A view of a matrix R C as the bank O I H W that it was."""
    out, inputs, height, width = like.shape
    return matrix.view(out, height, width, inputs).permute(0, 3, 1, 2)


def norm(m: Tensor) -> Tensor:
    """The length of each matrix, n 1 1; never 0."""
    length: Tensor = torch.linalg.vector_norm(m, dim=(1, 2), keepdim=True)
    return length.clamp(min=1e-12)


def orthogonal(sets: Sequence[Tensor]) -> list[Tensor]:
    """Sets of matrices n R C, R ≤ C or not: the same singular vectors, with singular values of about 1.

    Newton–Schulz, X ← (A + B·G + C·G²) X with G = X Xᵀ. All that an iteration needs is the small matrix G, so the
    polynomials of all sets are multiplied up together, padded with zeros to the largest G, and meet X once at the end.
    """
    wide = [m if m.shape[1] <= m.shape[2] else m.mT for m in sets]
    wide = [m / norm(m) for m in wide]
    size = max(m.shape[1] for m in wide)
    with full_precision():
        g = torch.cat([nn.functional.pad(m @ m.mT, (0, size - m.shape[1]) * 2) for m in wide])
        one = torch.eye(size, device=g.device, dtype=g.dtype)
        product = one.expand_as(g)
        for _ in range(STEPS):
            polynomial = A * one + B * g + C * (g @ g)
            product = polynomial @ product
            g = polynomial @ g @ polynomial
        parts = torch.split(product, [len(m) for m in wide])
        found = [q[:, : m.shape[1], : m.shape[1]] @ m for q, m in zip(parts, wide, strict=True)]
    return [o if o.shape == m.shape else o.mT for o, m in zip(found, sets, strict=True)]


@contextmanager
def full_precision() -> Iterator[None]:
    """Context without TF32, whose rounding of G would drown the small singular values."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
