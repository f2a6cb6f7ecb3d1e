"""Running statistics of batch norm: a context that does not update them, and their mean over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from npmatch.distributed.collective import all_reduce_mean_
from npmatch.distributed.ranks import is_initialized
from npmatch.heads.model import backbones_in
from npmatch.heads.sync_norm import SyncNorm


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Context in which batch norms normalise as usual, in training by the batch, but keep their running statistics."""
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def average_statistics(network: nn.Module) -> None:
    """Averages the running statistics of backbones' local norms over ranks, so that all ranks predict the same."""
    if not is_initialized():
        return
    seeing_a_share = [m for backbone in backbones_in(network) for m in backbone.modules()]
    local = [m for m in seeing_a_share if isinstance(m, _BatchNorm) and not isinstance(m, SyncNorm)]
    held = [statistic for norm in local for statistic in (norm.running_mean, norm.running_var)]
    all_reduce_mean_([statistic for statistic in held if statistic is not None])
