"""Batch norm followed by LeakyReLU on CUDA: Triton kernels that touch each tensor as rarely as the mathematics allows.

Tensors are P rows (pixels of all images) of C channels. Per-channel sums are made in two stages, a partial sum per
program and then their total, so that equal inputs give equal bits. The first stage of convolution.py's outputs is made
there, while they are in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

PROGRAMS = 384  # of a sum over rows: by their registers, three fit on each multiprocessor, of which an H200 has 132
PARTS, CHANNELS = 512, 4  # partial sums that a program adds at a time: few channels, so that many programs share them
ELEMENTS = 4096  # size of a program's tile


@triton.jit
def _sums(x, other, total, partial, P, C, tiles, ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Partial sums of x (or of x + other, which is written to `total`) and of its squares: 2 programs C."""
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first, second = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(tiles):
        row = (tile * tl.num_programs(0) + tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
        place = row[:, None] * C + channel[None, :]
        mask = (row < P)[:, None] & (channel < C)[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        if ADD:
            value += tl.load(other + place, mask=mask, other=0.0).to(tl.float32)
            rounded = value.to(total.dtype.element_ty)
            tl.store(total + place, rounded, mask=mask)
            value = rounded.to(tl.float32)
        first += value  # rows are summed once, at the end: a sum across threads costs more than a tile's load
        second += value * value
    out = partial + tl.program_id(0) * C + channel
    tl.store(out, tl.sum(first, 0), mask=channel < C)
    tl.store(out + tl.num_programs(0) * C, tl.sum(second, 0), mask=channel < C)


@triton.jit
def _total(partial, parts, C, channel, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    """Both sums of the given channels over all parts."""
    first, second = tl.zeros((PARTS, COLUMNS), tl.float32), tl.zeros((PARTS, COLUMNS), tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        place = partial + part[:, None] * C + channel[None, :]
        mask = (part < parts)[:, None] & (channel < C)[None, :]
        first += tl.load(place, mask=mask, other=0.0)
        second += tl.load(place + parts * C, mask=mask, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _statistics(
    partial,  # 2 parts C
    parts,
    weight,
    bias,
    running_mean,
    running_var,
    out,  # 4 C: mean, rstd, scale, shift
    P,
    C,
    eps,
    momentum,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Mean, rstd, scale and shift of a batch norm from its batch's sums; updates its running statistics."""
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = channel < C
    first, second = _total(partial, parts, C, channel, PARTS, COLUMNS)
    mean = first / P
    var = tl.maximum(second / P - mean * mean, 0.0)
    rstd = 1.0 / tl.sqrt(var + eps)
    scale = tl.load(weight + channel, mask=mask, other=0.0) * rstd
    tl.store(out + channel, mean, mask=mask)
    tl.store(out + C + channel, rstd, mask=mask)
    tl.store(out + 2 * C + channel, scale, mask=mask)
    tl.store(out + 3 * C + channel, tl.load(bias + channel, mask=mask, other=0.0) - mean * scale, mask=mask)
    old_mean = tl.load(running_mean + channel, mask=mask, other=0.0)
    old_var = tl.load(running_var + channel, mask=mask, other=0.0)
    tl.store(running_mean + channel, old_mean + momentum * (mean - old_mean), mask=mask)
    unbiased = var * (P / (P - 1.0))
    tl.store(running_var + channel, old_var + momentum * (unbiased - old_var), mask=mask)


@triton.jit
def _activate(x, scale, shift, y, P, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """y = LeakyReLU(x·scale + shift)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place = row[:, None] * C + channel[None, :]
    mask = (row < P)[:, None] & (channel < C)[None, :]
    a = tl.load(scale + channel, mask=channel < C, other=0.0)
    b = tl.load(shift + channel, mask=channel < C, other=0.0)
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32) * a[None, :] + b[None, :]
    tl.store(y + place, tl.where(value > 0, value, 0.1 * value).to(y.dtype.element_ty), mask=mask)


@triton.jit
def _gradient_sums(
    dy, x, statistics, partial, P, C, tiles, PART: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Partial sums of d, the gradient of the norm's output, and of d·x̂; of a part of the batch also of x̂ and x̂²."""
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_c = channel < C
    mean = tl.load(statistics + channel, mask=in_c, other=0.0)
    rstd = tl.load(statistics + C + channel, mask=in_c, other=0.0)
    scale = tl.load(statistics + 2 * C + channel, mask=in_c, other=0.0)
    shift = tl.load(statistics + 3 * C + channel, mask=in_c, other=0.0)
    first, second = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    third, fourth = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(tiles):
        row = (tile * tl.num_programs(0) + tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
        place = row[:, None] * C + channel[None, :]
        mask = (row < P)[:, None] & in_c[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        d = tl.load(dy + place, mask=mask, other=0.0).to(tl.float32)
        d = tl.where(value * scale[None, :] + shift[None, :] > 0, d, 0.1 * d)
        normal = (value - mean[None, :]) * rstd[None, :]
        first += d
        second += d * normal
        if PART:
            normal = tl.where(mask, normal, 0.0)
            third += normal
            fourth += normal * normal
    out = partial + tl.program_id(0) * C + channel
    size = tl.num_programs(0) * C
    tl.store(out, tl.sum(first, 0), mask=in_c)
    tl.store(out + size, tl.sum(second, 0), mask=in_c)
    if PART:
        tl.store(out + 2 * size, tl.sum(third, 0), mask=in_c)
        tl.store(out + 3 * size, tl.sum(fourth, 0), mask=in_c)


@triton.jit
def _coefficients(
    partial,  # 2 parts C, or 4
    parts,
    statistics,
    out,  # 4 C: gradients of weight and bias; dx = d·scale + x·factor + constant
    P,
    C,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """dx = scale · (d − mean of d − x̂ · mean of d·x̂), as three coefficients per channel.

    Of a part of the batch: d without what a line through x̂ explains, which is the same where x̂ has mean 0, variance 1.
    """
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = channel < C
    d_bias, d_weight = _total(partial, parts, C, channel, PARTS, COLUMNS)
    mean = tl.load(statistics + channel, mask=mask, other=0.0)
    rstd = tl.load(statistics + C + channel, mask=mask, other=0.0)
    scale = tl.load(statistics + 2 * C + channel, mask=mask, other=0.0)
    intercept, slope = d_bias / P, d_weight / P
    if PART:
        normal, square = _total(partial + 2 * parts * C, parts, C, channel, PARTS, COLUMNS)
        normal = normal / P
        slope = (slope - intercept * normal) / tl.maximum(square / P - normal * normal, 1e-6)
        intercept -= slope * normal
    factor = -scale * rstd * slope
    tl.store(out + channel, d_weight, mask=mask)
    tl.store(out + C + channel, d_bias, mask=mask)
    tl.store(out + 2 * C + channel, factor, mask=mask)
    tl.store(out + 3 * C + channel, -factor * mean - scale * intercept, mask=mask)


@triton.jit
def _input_gradient(
    dy,
    x,
    carried,
    statistics,
    coefficients,
    dx,
    P,
    C,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """dx of norm and activation together, plus the gradient `carried` that reaches x on another path."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_c = channel < C
    place = row[:, None] * C + channel[None, :]
    mask = (row < P)[:, None] & in_c[None, :]
    scale = tl.load(statistics + 2 * C + channel, mask=in_c, other=0.0)[None, :]
    shift = tl.load(statistics + 3 * C + channel, mask=in_c, other=0.0)[None, :]
    factor = tl.load(coefficients + 2 * C + channel, mask=in_c, other=0.0)[None, :]
    constant = tl.load(coefficients + 3 * C + channel, mask=in_c, other=0.0)[None, :]
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(dy + place, mask=mask, other=0.0).to(tl.float32)
    d = tl.where(value * scale + shift > 0, d, 0.1 * d)
    result = d * scale + value * factor + constant
    if ADD:
        result += tl.load(carried + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(dx + place, result.to(dx.dtype.element_ty), mask=mask)


def sums(x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x (or x + other), and the partial sums of it and of its squares, 2 parts C."""
    rows, channels, tile, columns = _tiling(x)
    partial = torch.empty((2, PROGRAMS, channels), dtype=torch.float32, device=x.device)
    total = x if other is None else torch.empty_like(x)
    _sums[(PROGRAMS, triton.cdiv(channels, columns))](
        x,
        x if other is None else other,
        total,
        partial,
        rows,
        channels,
        triton.cdiv(rows, tile * PROGRAMS),
        other is not None,
        tile,
        columns,
    )
    return total, partial


def take_statistics(x: Tensor, partial: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """mean, rstd, scale, shift of a batch, 4 C; updates the norm's running statistics."""
    rows, channels, _, _ = _tiling(x)
    out = torch.empty((4, channels), dtype=torch.float32, device=x.device)
    _statistics[(triton.cdiv(channels, CHANNELS),)](
        partial,
        partial.shape[1],
        norm.weight,
        norm.bias,
        norm.running_mean,
        norm.running_var,
        out,
        rows,
        channels,
        norm.eps,
        norm.momentum if norm.track_running_stats else 0.0,
        PARTS,
        CHANNELS,
    )
    return out


def activate(x: Tensor, statistics: Tensor) -> Tensor:
    """LeakyReLU(x·scale + shift)."""
    rows, channels, tile, columns = _tiling(x)
    y = torch.empty_like(x)
    _activate[(triton.cdiv(rows, tile), triton.cdiv(channels, columns))](
        x, statistics[2], statistics[3], y, rows, channels, tile, columns
    )
    return y


def gradient(
    dy: Tensor, x: Tensor, statistics: Tensor, carried: Tensor | None = None, part: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (plus `carried`), of the norm's weight and of its bias for y = LeakyReLU(norm(x)).

    `part`: the statistics are those of more images than x, whose gradients are taken for 0, as by a SyncNorm.
    """
    rows, channels, tile, columns = _tiling(x)
    blocks = triton.cdiv(channels, columns)
    partial = torch.empty((4 if part else 2, PROGRAMS, channels), dtype=torch.float32, device=x.device)
    tiles = triton.cdiv(rows, tile * PROGRAMS)
    _gradient_sums[(PROGRAMS, blocks)](dy, x, statistics, partial, rows, channels, tiles, part, tile, columns)
    coefficients = torch.empty((4, channels), dtype=torch.float32, device=x.device)
    _coefficients[(triton.cdiv(channels, CHANNELS),)](
        partial, PROGRAMS, statistics, coefficients, rows, channels, part, PARTS, CHANNELS
    )
    dx = torch.empty_like(x)
    _input_gradient[(triton.cdiv(rows, tile), blocks)](
        dy,
        x,
        x if carried is None else carried,
        statistics,
        coefficients,
        dx,
        rows,
        channels,
        carried is not None,
        tile,
        columns,
    )
    return dx, coefficients[0], coefficients[1]


def _tiling(x: Tensor) -> tuple[int, int, int, int]:
    """P, C, and the number of rows and columns of a tile."""
    channels = x.shape[1]
    columns = min(triton.next_power_of_2(channels), 64)
    return x.numel() // channels, channels, ELEMENTS // columns, columns
