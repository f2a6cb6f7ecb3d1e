"""Tensors that cross processes. In one process each word is the identity, and costs nothing.

How a step is divided. A rank holds its rows of the global batch's images and runs the backbone on them. Their
features, which are few numbers beside the images and activations, are gathered, and from there on every rank computes
the same thing on the whole batch: heads, means, pseudo-labels, thresholds, banks, queues, losses. What a loss remembers
is then equal on all ranks without being sent, and an algorithm reads as it does in one process.

What becomes of gradients. Let L_r be the loss that rank r computes, all of them equal to L, and let every rank go down
the mean (1/W) Σ_r L_r = L. The adjoint of gathering hands each rank the sum over r of dL_r/d(its rows); as the L_r are
equal, that is W times its own block, and nothing need be sent. Averaging the parameters' gradients over ranks then
gives, for a parameter before the gathering, (1/W) Σ_r W·(rank r's rows) = the gradient of L, and for one behind it the
mean of W equal gradients. So one rule serves all parameters: the mean over ranks.
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
    """What this process has sent through the words below; a captured graph counts once, when it is recorded."""

    collectives: int = 0
    sent: int = 0  # bytes this rank handed in, before the backend's own algorithm multiplies them
    seconds: float = 0.0  # inside the calls, waiting for other ranks included; on CUDA only the time to enqueue

    def clear(self) -> None:
        """From the beginning."""
        self.collectives, self.sent, self.seconds = 0, 0, 0.0


traffic = Traffic()


def all_gather(rows: Tensor) -> Tensor:
    """This rank's n rows → all W·n, in the order of the global batch; differentiable (see above)."""
    if not is_initialized():
        return rows
    # A compiler cannot look into a collective. Said here and not by a decorator, which would import the compiler.
    gathered: Tensor = torch.compiler.disable(_Gather.apply)(rows)  # type: ignore[no-untyped-call]
    return gathered


def all_gather_parts(rows: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Consecutive parts of this rank's rows → the same parts of the global batch, by one collective."""
    if not is_initialized():
        return torch.split(rows, list(sizes))
    by_rank = all_gather(rows).view(-1, *rows.shape)  # W n ...
    return tuple(part.flatten(0, 1) for part in torch.split(by_rank, list(sizes), dim=1))


def local_rows(rows: Tensor) -> Tensor:
    """All W·n rows → this rank's n."""
    return local_share().of(rows)


def all_reduce_mean_(tensors: Sequence[Tensor]) -> None:
    """Puts the mean over ranks into each tensor, all of them in one collective."""
    if not is_initialized() or not tensors:
        return
    flat = torch.cat([t.flatten() for t in tensors])
    reduced = all_reduce_sum(flat).div_(local_share().world)
    pieces = torch.split(reduced, [t.numel() for t in tensors])
    torch._foreach_copy_(list(tensors), [piece.view_as(t) for piece, t in zip(pieces, tensors, strict=True)])


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum over ranks, in the place of `values`; not differentiable."""
    start = _begin(values)
    dist.all_reduce(values)
    traffic.seconds += time.perf_counter() - start
    return values


def all_gather_no_grad(rows: Tensor) -> Tensor:
    """n ... → W·n ..., not differentiable."""
    rows = rows.contiguous()
    out = rows.new_empty((local_share().world * len(rows), *rows.shape[1:]))
    start = _begin(rows)
    dist.all_gather_into_tensor(out, rows)
    traffic.seconds += time.perf_counter() - start
    return out


def broadcast_(tensors: Sequence[Tensor]) -> bool:
    """Takes rank 0's values for every tensor; true where all ranks had them already, to the bit."""
    if not is_initialized():
        return True
    same = torch.ones((), device=tensors[0].device)
    for tensor in tensors:
        firsts = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(firsts, src=0)
        same.mul_(torch.equal(firsts, tensor))
        tensor.detach().copy_(firsts)
    return bool(all_reduce_sum(same) == local_share().world)


def _begin(sent: Tensor) -> float:
    traffic.collectives += 1
    traffic.sent += sent.numel() * sent.element_size()
    return time.perf_counter()


class _Gather(torch.autograd.Function):
    """`gather` with its adjoint for equal losses on all ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return all_gather_no_grad(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        share = local_share()
        return share.of(gradient) * share.world
