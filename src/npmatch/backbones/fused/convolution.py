"""A 3×3 convolution for few channels on CUDA: Triton kernels that take two pixels of a row at a time.

Library kernels are made for 64 channels and more; with 16 or 32 they reach a quarter of the memory's speed. In NHWC
the inputs of two neighbouring output pixels are, in each of three rows, four neighbouring pixels: 4·C consecutive
numbers. So a convolution is three products of matrices, pairs × 4C by 4C × 2C', whose right factors hold each weight
twice (a third of their entries is zero, which costs less than the loads it saves).

A program walks down the rows of a few images. Each row of inputs is loaded once for the three rows of outputs that it
is part of, whose sums stay in registers, and the weights stay in shared memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_CHANNELS = 32  # with more channels, library kernels are as fast
PAIRS = 64  # rows of a matrix: the pairs of pixels of one row of as many images as there is room for
WIDEST = 2 * PAIRS  # pixels of a row
PROGRAMS = 264  # that run at the same time: two per multiprocessor of an H100 or H200


@triton.jit
def _line(weight, LINE: tl.constexpr, C: tl.constexpr, C_OUT: tl.constexpr, BACKWARD: tl.constexpr):
    """The matrix 4C × 2C' between one row's inputs and the outputs of a pair; lines 0, 1, 2 are above, at and below."""
    k = tl.arange(0, 4 * C)
    n = tl.arange(0, 2 * C_OUT)
    place = (k // C)[:, None] - (n // C_OUT)[None, :]  # of the weight between an input and an output: 0, 1, 2 or none
    if BACKWARD:
        entry = (k % C)[:, None] * (9 * C_OUT) + (8 - 3 * LINE - place) * C_OUT + (n % C_OUT)[None, :]
    else:
        entry = (n % C_OUT)[None, :] * (9 * C) + (3 * LINE + place) * C + (k % C)[:, None]
    return tl.load(weight + entry, mask=(place >= 0) & (place < 3), other=0.0)


@triton.jit
def _convolve(
    x,  # P C
    weight,  # C' 3 3 C, or the other way round
    y,  # P C'
    other,  # P C'
    partial,  # 2 parts C'
    images,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    C_OUT: tl.constexpr,
    BACKWARD: tl.constexpr,  # the gradient of the inputs: channels swapped, places mirrored
    ADD: tl.constexpr,  # `other`
    SUM: tl.constexpr,  # y and y²
    ROWS: tl.constexpr,
    M: tl.constexpr,
):
    ACROSS: tl.constexpr = W // 2
    IMAGES: tl.constexpr = M // ACROSS
    m = tl.arange(0, M)
    k = tl.arange(0, 4 * C)
    n = tl.arange(0, 2 * C_OUT)
    image = tl.program_id(0) * IMAGES + m // ACROSS
    is_image = (m // ACROSS < IMAGES) & (image < images)
    first_row = tl.program_id(1) * ROWS
    pixel = image * (H * W) + m % ACROSS * 2  # in the image's first row
    window = (m % ACROSS * 2 - 1)[:, None] + (k // C)[None, :]  # the column each input lies in
    in_row = (window >= 0) & (window < W) & is_image[:, None]
    above = _line(weight, 0, C, C_OUT, BACKWARD)
    centre = _line(weight, 1, C, C_OUT, BACKWARD)
    below = _line(weight, 2, C, C_OUT, BACKWARD)
    first = tl.zeros((M, 2 * C_OUT), tl.float32)
    second = tl.zeros((M, 2 * C_OUT), tl.float32)
    at_row = tl.zeros((M, 2 * C_OUT), tl.float32)  # outputs of the row of inputs, so far, and of the row below it
    at_next = tl.zeros((M, 2 * C_OUT), tl.float32)
    for step in range(ROWS + 2):
        row = first_row - 1 + step + tl.zeros((M,), tl.int32)  # of the inputs; outputs are complete one row above it
        place = (pixel + (row - 1) * W)[:, None] * C_OUT + n[None, :]
        is_done = (is_image & (row > first_row))[:, None]
        if ADD:
            beside = tl.load(other + place, mask=is_done, other=0.0)  # early, to arrive during the products
        mask = in_row & ((row >= 0) & (row < H))[:, None]
        inputs = tl.load(x + (pixel + row * W - 1)[:, None] * C + k[None, :], mask=mask, other=0.0)
        value = tl.dot(inputs, below, at_row)
        at_row = tl.dot(inputs, centre, at_next)
        at_next = tl.dot(inputs, above, tl.zeros((M, 2 * C_OUT), tl.float32))
        if ADD:
            value += beside.to(tl.float32)
        rounded = value.to(y.dtype.element_ty)
        tl.store(y + place, rounded, mask=is_done)
        if SUM:
            value = tl.where(is_done, rounded.to(tl.float32), 0.0)
            first += value
            second += value * value
    if SUM:
        program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        parts = tl.num_programs(0) * tl.num_programs(1) * 2
        out = partial + program * (2 * C_OUT) + n
        tl.store(out, tl.sum(first, 0))
        tl.store(out + parts * C_OUT, tl.sum(second, 0))


@triton.jit
def _weight_gradient(
    x,  # P C
    dy,  # P C'
    partial,  # programs 3 2C' 4C
    images,
    steps,  # rows of a few images, per program
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    C_OUT: tl.constexpr,
    M: tl.constexpr,
):
    ACROSS: tl.constexpr = W // 2
    IMAGES: tl.constexpr = M // ACROSS
    program = tl.program_id(0)
    m = tl.arange(0, M)
    k = tl.arange(0, 4 * C)
    n = tl.arange(0, 2 * C_OUT)
    window = (m % ACROSS * 2 - 1)[:, None] + (k // C)[None, :]
    in_row = (window >= 0) & (window < W)
    above = tl.zeros((2 * C_OUT, 4 * C), tl.float32)
    centre = tl.zeros((2 * C_OUT, 4 * C), tl.float32)
    below = tl.zeros((2 * C_OUT, 4 * C), tl.float32)
    for step in range(steps):
        line = program * steps + step
        row = line % H + tl.zeros((M,), tl.int32)  # of the inputs
        image = line // H * IMAGES + m // ACROSS
        pixel = (image * H + row) * W + m % ACROSS * 2
        is_image = (m // ACROSS < IMAGES) & (image < images)
        inputs = tl.load(x + (pixel - 1)[:, None] * C + k[None, :], mask=is_image[:, None] & in_row, other=0.0)
        place = dy + pixel[:, None] * C_OUT + n[None, :]
        gradient = tl.load(place + W * C_OUT, mask=(is_image & (row < H - 1))[:, None], other=0.0)
        above = tl.dot(tl.trans(gradient), inputs, above)  # the inputs are above the outputs of the next row
        gradient = tl.load(place, mask=is_image[:, None], other=0.0)
        centre = tl.dot(tl.trans(gradient), inputs, centre)
        gradient = tl.load(place - W * C_OUT, mask=(is_image & (row > 0))[:, None], other=0.0)
        below = tl.dot(tl.trans(gradient), inputs, below)
    size: tl.constexpr = 2 * C_OUT * 4 * C
    out = partial + program * 3 * size + n[:, None] * (4 * C) + k[None, :]
    tl.store(out, above)
    tl.store(out + size, centre)
    tl.store(out + 2 * size, below)


@triton.jit
def _fold(
    partial,  # programs 3 2C' 4C
    gradient,  # C' 3 3 C
    programs,
    C: tl.constexpr,
    C_OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_entry = entry < 9 * C * C_OUT
    channel, column, line, out = entry % C, entry // C % 3, entry // (3 * C) % 3, entry // (9 * C)
    size: tl.constexpr = 2 * C_OUT * 4 * C
    left = line * size + out * (4 * C) + column * C + channel
    right = left + C_OUT * (4 * C) + C  # the same weight between the next input and the next output
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, programs, ROWS):
        program = first + tl.arange(0, ROWS)
        start = partial + program[:, None] * (3 * size)
        mask = (program < programs)[:, None] & is_entry[None, :]
        rows = tl.load(start + left[None, :], mask=mask, other=0.0) + tl.load(
            start + right[None, :], mask=mask, other=0.0
        )
        total += tl.sum(rows, 0)
    tl.store(gradient + entry, total, mask=is_entry)


def convolve(x: Tensor, weight: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """N C H W by C' C 3 3 → N C' H W (plus `other`), and its sums for the norm that follows. All channels last."""
    return _run(x, weight, weight.shape[0], False, True, other)


def input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    """N C' H W by C' C 3 3 → N C H W. All channels last."""
    return _run(dy, weight, weight.shape[1], True, False)[0]


def _run(
    x: Tensor, weight: Tensor, out: int, backward: bool, sum_up: bool, other: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    n, channels, height, width = x.shape
    y = torch.empty((n, out, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    blocks = triton.cdiv(n, PAIRS // (width // 2))
    rows = _rows(height, blocks)
    grid = (blocks, height // rows)
    partial = torch.empty((2, 2 * grid[0] * grid[1], out), dtype=torch.float32, device=x.device)
    _convolve[grid](
        x,
        weight,
        y,
        x if other is None else other,
        partial,
        n,
        height,
        width,
        channels,
        out,
        backward,
        other is not None,
        sum_up,
        rows,
        PAIRS,
        num_warps=4,
        num_stages=3,
    )
    return y, partial


def _rows(height: int, blocks: int) -> int:
    """Rows of a program: those with which all programs, of which PROGRAMS run at a time, walk down the fewest rows."""
    parts = [rows for rows in range(4, height + 1) if height % rows == 0] or [height]
    return min(parts, key=lambda rows: triton.cdiv(blocks * (height // rows), PROGRAMS) * (rows + 2))


def weight_gradient(x: Tensor, dy: Tensor) -> Tensor:
    """N C H W and N C' H W → C' C 3 3 in float32. All channels last."""
    n, channels, height, width = x.shape
    out = dy.shape[1]
    m = max(PAIRS // 2, triton.next_power_of_2(width // 2))
    steps = triton.cdiv(triton.cdiv(n, m // (width // 2)) * height, PROGRAMS)
    partial = torch.empty((PROGRAMS, 3, 2 * out, 4 * channels), dtype=torch.float32, device=x.device)
    _weight_gradient[(PROGRAMS,)](
        x, dy, partial, n, steps, height, width, channels, out, m, num_warps=4, num_stages=4 if m < 64 else 2
    )
    gradient = torch.empty(
        (out, channels, 3, 3), dtype=torch.float32, device=x.device, memory_format=torch.channels_last
    )
    _fold[(triton.cdiv(gradient.numel(), 64),)](partial, gradient, PROGRAMS, channels, out, 64, 64)
    return gradient
