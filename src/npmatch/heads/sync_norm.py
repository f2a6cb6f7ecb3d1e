"""Batch norm over the global batch: every rank normalises its rows by the mean and variance of all rows.

torch's SyncBatchNorm works on CUDA only; this one works on any device, and in one process it is plain batch norm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from npmatch.distributed.collective import all_gather_no_grad, all_reduce_mean_, all_reduce_sum
from npmatch.distributed.ranks import is_initialized, world_size
from npmatch.errors import NPMatchError
from npmatch.heads.model import backbones_in

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SyncNorm(_BatchNorm):
    """A batch norm whose batch is that of all ranks; its state has the names of the norm it replaces."""

    def __init__(self, norm: _BatchNorm) -> None:
        """Takes over the parameters and statistics of `norm`."""
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        for name, held in (*norm.named_parameters(recurse=False), *norm.named_buffers(recurse=False)):
            setattr(self, name, held)
        # timm's norms contain their activation.
        self.then = [part for name in ("drop", "act") if (part := getattr(norm, name, None)) is not None]

    def _check_input_dim(self, input: Tensor) -> None:
        """Accepts images, sequences and vectors."""

    def forward(self, input: Tensor) -> Tensor:
        """N C ... → N C ...."""
        # Not compiled: it has a collective. Disabled here and not by a decorator, which would import the compiler.
        y: Tensor = torch.compiler.disable(self.normalise)(input)  # type: ignore[no-untyped-call]
        return y

    def normalise(self, input: Tensor) -> Tensor:
        """The uncompiled part of `forward`."""
        y: Tensor = self.over_all(input) if self.training and is_initialized() else super().forward(input)
        for part in self.then:
            y = part(y)
        return y

    def over_all(self, x: Tensor) -> Tensor:
        """Normalises by the global batch and updates the running statistics, unless they are frozen."""
        y, mean, var = _Normalise.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
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
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        var, mean = torch.var_mean(_wide(x), _others(x), correction=0)
        # Ranks hold equally many rows: the variance of all is the mean variance plus the variance of the means.
        means, variances = all_gather_no_grad(torch.stack([mean, var])[None]).unbind(1)  # each W C
        mean = means.mean(0)
        var = variances.mean(0) + (means - mean).square().mean(0)
        scale = (var + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, scale)
        y = (_wide(x) - _per_channel(mean, x)) * _per_channel(scale if weight is None else scale * weight, x)
        if bias is not None:
            y = y + _per_channel(bias, x)
        ctx.mark_non_differentiable(mean, var)
        return y.to(x.dtype), mean, var

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, mean, scale = ctx.saved_tensors
        dy = _wide(gradients[0])
        normal = (_wide(x) - _per_channel(mean, x)) * _per_channel(scale, x)
        d_bias, d_weight = (
            dy.sum(_others(x)),
            (dy * normal).sum(_others(x)),
        )  # over this rank's rows, as for any parameter
        count = world_size() * x.numel() / x.shape[1]
        # Every row contributed to the mean and the variance that normalise all rows on all ranks.
        mean_dy, mean_dy_normal = (all_reduce_sum(torch.stack([d_bias, d_weight])) / count).unbind(0)
        through = dy - _per_channel(mean_dy, x) - normal * _per_channel(mean_dy_normal, x)
        dx = through * _per_channel(scale if weight is None else scale * weight, x)
        return dx.to(x.dtype), None if weight is None else d_weight, None if weight is None else d_bias, None


def _others(x: Tensor) -> list[int]:
    """All dimensions except the channels."""
    return [0, *range(2, x.dim())]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """C → 1 C 1 ..., with as many dimensions as x."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _wide(x: Tensor) -> Tensor:
    """x in at least float32, as sums over a batch need more digits than bfloat16 has."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def synchronise_norms(network: nn.Module) -> None:
    """Replaces every batch norm of a network by a SyncNorm."""
    for name, child in network.named_children():
        if not isinstance(child, _BatchNorm):
            synchronise_norms(child)
        elif type(child) in PLAIN or hasattr(child, "act"):
            setattr(network, name, SyncNorm(child))
        elif not isinstance(child, SyncNorm):
            raise NPMatchError(
                f"training.sync_norm: {type(child).__name__} cannot be synchronised; set training.sync_norm=false"
            )


def average_statistics(network: nn.Module) -> None:
    """Averages the running statistics of backbones' local norms over ranks, so that all ranks predict the same."""
    if not is_initialized():
        return
    seeing_a_share = [m for backbone in backbones_in(network) for m in backbone.modules()]
    local = [m for m in seeing_a_share if isinstance(m, _BatchNorm) and not isinstance(m, SyncNorm)]
    held = [statistic for norm in local for statistic in (norm.running_mean, norm.running_var)]
    all_reduce_mean_([statistic for statistic in held if statistic is not None])
