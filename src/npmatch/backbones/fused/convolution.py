"""A 3×3 convolution for few channels on CUDA: Triton kernels that take two pixels of a row at a time.

Library kernels are made for 64 channels and more; with 16 or 32 they reach a quarter of the memory's speed. In NHWC
the inputs of two neighbouring output pixels are, in each of three rows, four neighbouring pixels: 4·C consecutive
numbers. So a convolution is three products of matrices, pairs × 4C by 4C × 2C', whose right factors hold each weight
twice (a third of their entries is zero, which costs less than the loads it saves).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_CHANNELS = 32  # with more channels, library kernels are as fast
PROGRAMS = 132  # of the weight gradient, each with a partial sum: one per multiprocessor of an H100 or H200


@triton.jit
def _convolve(
    x,  # P C
    weight,  # C' 3 3 C, or the other way round
    y,  # P C'
    pairs,  # P / 2
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    C_OUT: tl.constexpr,
    BACKWARD: tl.constexpr,  # the gradient of the inputs: channels swapped, places mirrored
    BLOCK: tl.constexpr,
):
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = pair % (W // 2) * 2
    row = pair // (W // 2) % H
    k = tl.arange(0, 4 * C)
    n = tl.arange(0, 2 * C_OUT)
    window = column[:, None] - 1 + (k // C)[None, :]  # the column each input lies in
    in_row = (window >= 0) & (window < W) & (pair < pairs)[:, None]
    start = (2 * pair - 1)[:, None] * C + k[None, :]
    place = (k // C)[:, None] - (n // C_OUT)[None, :]  # of the weight between an input and an output: 0, 1, 2 or none
    if BACKWARD:
        entry = (k % C)[:, None] * (9 * C_OUT) + (2 - place) * C_OUT + (n % C_OUT)[None, :]
    else:
        entry = (n % C_OUT)[None, :] * (9 * C) + place * C + (k % C)[:, None]
    total = tl.zeros((BLOCK, 2 * C_OUT), tl.float32)
    for line in tl.static_range(3):
        there = row + line - 1
        inside = ((there >= 0) & (there < H))[:, None] & in_row
        inputs = tl.load(x + start + (line - 1) * W * C, mask=inside, other=0.0)
        if BACKWARD:
            weights = tl.load(weight + entry + (2 - line) * 3 * C_OUT, mask=(place >= 0) & (place < 3), other=0.0)
        else:
            weights = tl.load(weight + entry + line * 3 * C, mask=(place >= 0) & (place < 3), other=0.0)
        total = tl.dot(inputs, weights, total)
    out = y + pair[:, None] * (2 * C_OUT) + n[None, :]
    tl.store(out, total.to(y.dtype.element_ty), mask=(pair < pairs)[:, None])


@triton.jit
def _weight_gradient(
    x,  # P C
    dy,  # P C'
    partial,  # programs 3 4C 2C'
    pairs,
    blocks,  # of pairs, per program
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    C_OUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    k = tl.arange(0, 4 * C)
    n = tl.arange(0, 2 * C_OUT)
    above = tl.zeros((4 * C, 2 * C_OUT), tl.float32)
    centre = tl.zeros((4 * C, 2 * C_OUT), tl.float32)
    below = tl.zeros((4 * C, 2 * C_OUT), tl.float32)
    for block in range(blocks):
        pair = (program * blocks + block) * BLOCK + tl.arange(0, BLOCK)
        column = pair % (W // 2) * 2
        row = pair // (W // 2) % H
        window = column[:, None] - 1 + (k // C)[None, :]
        in_row = (window >= 0) & (window < W) & (pair < pairs)[:, None]
        start = x + (2 * pair - 1)[:, None] * C + k[None, :]
        gradient = tl.load(dy + pair[:, None] * (2 * C_OUT) + n[None, :], mask=(pair < pairs)[:, None], other=0.0)
        inputs = tl.load(start - W * C, mask=(row > 0)[:, None] & in_row, other=0.0)
        above = tl.dot(tl.trans(inputs), gradient, above)
        inputs = tl.load(start, mask=in_row, other=0.0)
        centre = tl.dot(tl.trans(inputs), gradient, centre)
        inputs = tl.load(start + W * C, mask=(row < H - 1)[:, None] & in_row, other=0.0)
        below = tl.dot(tl.trans(inputs), gradient, below)
    size: tl.constexpr = 4 * C * 2 * C_OUT
    out = partial + program * 3 * size + k[:, None] * (2 * C_OUT) + n[None, :]
    tl.store(out, above)
    tl.store(out + size, centre)
    tl.store(out + 2 * size, below)


@triton.jit
def _fold(
    partial,  # programs 3 4C 2C'
    gradient,  # C' 3 3 C
    programs,
    C: tl.constexpr,
    C_OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # in the order of `partial`, which is the larger
    is_entry = entry < 9 * C * C_OUT
    out, channel, column, line = entry % C_OUT, entry // C_OUT % C, entry // (C_OUT * C) % 3, entry // (3 * C_OUT * C)
    size: tl.constexpr = 4 * C * 2 * C_OUT
    left = line * size + (column * C + channel) * (2 * C_OUT) + out
    right = left + C * 2 * C_OUT + C_OUT  # the same weight between the next input and the next output
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, programs, ROWS):
        program = first + tl.arange(0, ROWS)
        start = partial + program[:, None] * (3 * size)
        mask = (program < programs)[:, None] & is_entry[None, :]
        rows = tl.load(start + left[None, :], mask=mask, other=0.0) + tl.load(
            start + right[None, :], mask=mask, other=0.0
        )
        total += tl.sum(rows, 0)
    tl.store(gradient + out * (9 * C) + line * (3 * C) + column * C + channel, total, mask=is_entry)


def convolve(x: Tensor, weight: Tensor, backward: bool = False) -> Tensor:
    """N C H W by C' C 3 3 → N C' H W; `backward`: N C' H W by C' C 3 3 → N C H W. All of it channels last."""
    n, channels, height, width = x.shape
    out = weight.shape[1] if backward else weight.shape[0]
    y = torch.empty((n, out, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pairs, block = n * height * width // 2, 128
    _convolve[(triton.cdiv(pairs, block),)](
        x, weight, y, pairs, height, width, channels, out, backward, block, num_warps=8, num_stages=1
    )
    return y


def weight_gradient(x: Tensor, dy: Tensor) -> Tensor:
    """N C H W and N C' H W → C' C 3 3 in float32. All of it channels last."""
    n, channels, height, width = x.shape
    out = dy.shape[1]
    pairs, block = n * height * width // 2, 64
    blocks = triton.cdiv(pairs, block * PROGRAMS)
    partial = torch.empty((PROGRAMS, 3, 4 * channels, 2 * out), dtype=torch.float32, device=x.device)
    _weight_gradient[(PROGRAMS,)](
        x, dy, partial, pairs, blocks, height, width, channels, out, block, num_warps=4, num_stages=3
    )
    gradient = torch.empty(
        (out, channels, 3, 3), dtype=torch.float32, device=x.device, memory_format=torch.channels_last
    )
    _fold[(triton.cdiv(gradient.numel(), 64),)](partial, gradient, PROGRAMS, channels, out, 64, 64)
    return gradient
