"""Collectives on tensors. Without a process group each of them is the identity and costs nothing.

How a step is divided. A rank holds its rows of the global batch's images and runs the backbone on them. The features,
which are small beside the images and activations, are gathered, and from there on every rank computes the same thing on
the whole batch: heads, means, pseudo-labels, thresholds, banks, queues, losses. The state of a loss is then equal on
all ranks without being sent, and an algorithm reads as it does in one process.

How gradients follow. Let L_r be the loss that rank r computes, all of them equal to L, and let every rank minimise the
mean (1/W) Σ_r L_r = L. The adjoint of all_gather gives each rank the sum over r of dL_r/d(its rows); as the L_r are
equal, that is W times its own block, and nothing needs to be sent. Averaging the parameters' gradients over ranks then
gives, for a parameter before the all_gather, (1/W) Σ_r W·(gradient by rank r's rows) = the gradient of L, and for one
after it the mean of W equal gradients. So one rule serves all parameters: the mean over ranks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from npmatch.distributed.ranks import is_initialized, local_share


@dataclass
class Traffic:
    """What the collectives below have sent from this process; a CUDA graph counts once, when it is captured."""

    collectives: int = 0
    sent: int = 0  # bytes that this rank passed in; the backend's algorithm may send them several times
    seconds: float = 0.0  # in the calls, including the wait for other ranks; on CUDA only the time to enqueue them

    def clear(self) -> None:
        """Sets all counters to zero."""
        self.collectives, self.sent, self.seconds = 0, 0, 0.0


traffic = Traffic()


def all_gather(rows: Tensor) -> Tensor:
    """This rank's n rows → all W·n, in the order of the global batch; differentiable, as derived above."""
    if not is_initialized():
        return rows
    # torch.compile cannot trace a collective. Disabled here and not by a decorator, which would import the compiler.
    gathered: Tensor = torch.compiler.disable(_Gather.apply)(rows)  # type: ignore[no-untyped-call]
    return gathered


def all_gather_parts(rows: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Parts of this rank's rows, of the given sizes → the same parts of the global batch, in one collective."""
    if not is_initialized():
        return torch.split(rows, list(sizes))
    by_rank = all_gather(rows).view(-1, *rows.shape)  # W n ...
    return tuple(part.flatten(0, 1) for part in torch.split(by_rank, list(sizes), dim=1))


def local_rows(rows: Tensor) -> Tensor:
    """This rank's n rows of all W·n."""
    return local_share().of(rows)


def all_reduce_mean_(tensors: Sequence[Tensor]) -> None:
    """Replaces each tensor by its mean over ranks, all of them in one collective."""
    if not is_initialized() or not tensors:
        return
    flat = torch.cat([t.flatten() for t in tensors])
    reduced = all_reduce_sum(flat).div_(local_share().world)
    pieces = torch.split(reduced, [t.numel() for t in tensors])
    torch._foreach_copy_(list(tensors), [piece.view_as(t) for piece, t in zip(pieces, tensors, strict=True)])


def all_reduce_sum(values: Tensor) -> Tensor:
    """Replaces `values` by their sum over ranks and returns them; not differentiable."""
    if not is_initialized():
        return values
    start = _count(values)
    dist.all_reduce(values)
    traffic.seconds += time.perf_counter() - start
    return values


def all_gather_no_grad(rows: Tensor) -> Tensor:
    """This rank's n rows → all W·n, in the order of the global batch; not differentiable."""
    if not is_initialized():
        return rows
    rows = rows.contiguous()
    out = rows.new_empty((local_share().world * len(rows), *rows.shape[1:]))
    start = _count(rows)
    dist.all_gather_into_tensor(out, rows)
    traffic.seconds += time.perf_counter() - start
    return out


def broadcast_(tensors: Sequence[Tensor]) -> bool:
    """Copies rank zero's tensors to all ranks; returns whether all ranks had equal tensors before, to the bit."""
    if not is_initialized():
        return True
    is_same = torch.ones((), device=tensors[0].device)
    for tensor in tensors:
        of_rank_zero = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(of_rank_zero, src=0)
        is_same.mul_(torch.equal(of_rank_zero, tensor))
        tensor.detach().copy_(of_rank_zero)
    return bool(all_reduce_sum(is_same) == local_share().world)


def _count(sent: Tensor) -> float:
    """Counts a collective that sends this tensor, and returns the time at which it starts."""
    traffic.collectives += 1
    traffic.sent += sent.numel() * sent.element_size()
    return time.perf_counter()


class _Gather(torch.autograd.Function):
    """all_gather, whose backward pass assumes equal losses on all ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return all_gather_no_grad(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        share = local_share()
        return share.of(gradient) * share.world
