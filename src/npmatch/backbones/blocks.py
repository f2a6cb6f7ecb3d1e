"""Predictions on a CPU: a network sees a few images at a time, so that their activations stay in its caches.

Activations of hundreds of images do not, and moving them takes several times as long as the arithmetic
(`python -m benchmarks.blocks`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PIXELS = 2**16  # of a block of images, as the network sees them
FEWEST = 8  # images of a block, however large they are


def in_blocks(network: Callable[[Tensor], Tensor], x: Tensor, side: int | None = None) -> Tensor:
    """`network` of images N C H W, without gradient; `side` is the one that it scales them to, None: their own.

    For networks that treat every image by itself. Elsewhere than on a CPU, and where a graph is traced that must serve
    batches of every size, all images are taken at once.
    """
    traces = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if x.device.type != "cpu" or x.dim() != 4 or torch.is_grad_enabled() or traces:
        return network(x)
    blocks: tuple[Tensor, ...] = torch.split(x, block_size(side or x.shape[-1]))
    return torch.cat([network(block.contiguous(memory_format=torch.channels_last)) for block in blocks])


def block_size(side: int) -> int:
    """Number of images of a block."""
    return max(FEWEST, PIXELS // side**2)
