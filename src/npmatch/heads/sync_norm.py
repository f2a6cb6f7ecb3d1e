"""Batch norm over the global batch: every rank normalises its rows by the mean and variance of all rows.

torch's SyncBatchNorm works on CUDA only; this one works on any device, and in one process it is plain batch norm.

It can also learn from a part of the batch: all images are normalised together, but only the first ones get gradients.
As a norm undoes any shift and scale of its inputs x, the gradients of a channel's x sum up to 0, and so do their
products with x. This must hold for the images that learn alone: their gradients d lose what a line through their
normalised inputs x̂ explains,

    dx = scale · (d − a − b·x̂)      with a, b that minimise Σ (d − a − b·x̂)² over the images that learn.

If all images learn, this is the gradient of batch norm (up to its ε).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from npmatch.distributed.collective import all_gather_no_grad, all_reduce_sum
from npmatch.distributed.ranks import is_initialized, world_size
from npmatch.errors import NPMatchError

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SyncNorm(_BatchNorm):
    """A batch norm whose batch is that of all ranks; its state has the names of the norm it replaces."""

    def __init__(self, norm: _BatchNorm) -> None:
        """Takes over the parameters and statistics of `norm`."""
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        for name, held in (*norm.named_parameters(recurse=False), *norm.named_buffers(recurse=False)):
            setattr(self, name, held)
        self.learning: int | None = None  # number of first images that get gradients; None: all
        # timm's norms contain their activation.
        self.then = [part for name in ("drop", "act") if (part := getattr(norm, name, None)) is not None]

    @property
    def is_plain(self) -> bool:
        """Whether it computes what torch's norm does, except for the images that do not learn."""
        return not is_initialized() and not self.then

    def _check_input_dim(self, input: Tensor) -> None:
        """Accepts images, sequences and vectors."""

    def forward(self, input: Tensor) -> Tensor:
        """N C ... → N C ...."""
        if not is_initialized():
            return self.normalise(input)
        # Not compiled: it has a collective. Disabled here and not by a decorator, which would import the compiler.
        y: Tensor = torch.compiler.disable(self.normalise)(input)  # type: ignore[no-untyped-call]
        return y

    def normalise(self, input: Tensor) -> Tensor:
        """N C ... → N C ...; on several ranks the part of `forward` that is not compiled."""
        is_special = self.training and (is_initialized() or self.learning is not None)
        y: Tensor = self.over_all(input) if is_special else super().forward(input)
        for part in self.then:
            y = part(y)
        return y

    def over_all(self, x: Tensor) -> Tensor:
        """Normalises by the global batch and updates the running statistics, unless they are frozen."""
        y, mean, var = _Normalise.apply(x, self.weight, self.bias, self.eps, self.learning)  # type: ignore[no-untyped-call]
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            share = 1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
            count = world_size() * x.numel() / x.shape[1]
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_((var * (count / max(count - 1, 1))).to(self.running_var.dtype), share)
        result: Tensor = y
        return result


class _Normalise(torch.autograd.Function):
    """(x − mean) / std · weight + bias with mean and variance over all ranks; returns these two as well."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, learning: int | None
    ) -> Any:
        var, mean = torch.var_mean(_wide(x), _others(x), correction=0)
        # Ranks hold equally many rows: the variance of all is the mean variance plus the variance of the means.
        means, variances = all_gather_no_grad(torch.stack([mean, var])[None]).unbind(1)  # each W C
        mean = means.mean(0)
        var = variances.mean(0) + (means - mean).square().mean(0)
        scale = (var + eps).rsqrt()
        ctx.save_for_backward(x[:learning], weight, mean, scale)
        ctx.is_part = learning is not None
        y = F.batch_norm(x, mean, var, weight, bias, eps=eps)
        ctx.mark_non_differentiable(mean, var)
        return y, mean, var

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, mean, scale = ctx.saved_tensors
        dtype = x.dtype
        dx = torch.zeros_like(_wide(gradients[0]))
        x, dy = _wide(x), _wide(gradients[0][: len(x)])
        # Gradients of the parameters are over this rank's rows, as for any parameter.
        d_bias = dy.sum(_others(x))
        d_weight = ((dy * x).sum(_others(x)) - mean * d_bias) * scale
        # Every row that learns contributed to the mean and the variance that normalise all rows on all ranks.
        count = world_size() * x.numel() / x.shape[1]
        a, b = (all_reduce_sum(torch.stack([d_bias, d_weight])) / count).unbind(0)
        if ctx.is_part:
            var, centre = torch.var_mean(x, _others(x), correction=0)
            centre = (centre - mean) * scale  # mean of x̂ over this rank's images that learn
            moments = torch.stack([centre, var * scale.square() + centre.square()])
            centre, square = (all_reduce_sum(moments) / world_size()).unbind(0)
            b = (b - a * centre) / (square - centre.square()).clamp(min=1e-6)
            a = a - b * centre
        # scale · (dy − a − b·x̂), and 0 for the images that do not learn
        weighted = scale if weight is None else scale * weight
        rows = dx[: len(x)]
        constant = weighted * (b * scale * mean - a)
        torch.addcmul(_per_channel(constant, x), dy, _per_channel(weighted, x), out=rows)
        rows.addcmul_(x, _per_channel(-weighted * b * scale, x))
        return dx.to(dtype), None if weight is None else d_weight, None if weight is None else d_bias, None, None


def _others(x: Tensor) -> list[int]:
    """All dimensions except the channels."""
    return [0, *range(2, x.dim())]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """C → 1 C 1 ..., with as many dimensions as x."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _wide(x: Tensor) -> Tensor:
    """x in at least float32, as sums over a batch need more digits than bfloat16 has."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def synchronise_norms(network: nn.Module, key: str = "training.sync_norm", instead: str = "false") -> None:
    """Replaces every batch norm of a network by a SyncNorm, because of the setting `key`."""
    for name, child in network.named_children():
        if not isinstance(child, _BatchNorm):
            synchronise_norms(child, key, instead)
        elif type(child) in PLAIN or hasattr(child, "act"):
            setattr(network, name, SyncNorm(child))
        elif not isinstance(child, SyncNorm):
            raise NPMatchError(
                f"{key}: a {type(child).__name__} of the network cannot be replaced; set {key}={instead}"
            )


@contextmanager
def learning_from_first(network: nn.Module, images: int | None) -> Iterator[None]:
    """Context in which a network's SyncNorms give gradients to the first images of a batch only; None: to all."""
    norms = [module for module in network.modules() if isinstance(module, SyncNorm)]
    for norm in norms:
        norm.learning = images
    try:
        yield
    finally:
        for norm in norms:
            norm.learning = None
