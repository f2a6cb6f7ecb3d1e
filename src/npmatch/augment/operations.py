"""The fourteen operations of RandAugment on batches, each pixel for pixel what Pillow computes.

Every operation is of one of three kinds, so a batch in which each image has its own takes three passes
instead of fourteen: a look-up table of the 256 levels, a blend with a degenerate image, an affine map of the
coordinates. Shapes are static and no value is read back to the host, so a CUDA graph can capture all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

# ---- kind 1: a table of levels, n C 256 (or n 1 256 where the channels share it) ----


def look_up(images: Tensor, table: Tensor) -> Tensor:
    """Each pixel's entry in its channel's table: n C H W and n C 256 → n C H W, uint8."""
    table = table.expand(-1, images.shape[1], -1)
    return table.gather(2, images.flatten(2).long()).view_as(images)


def identity_table(images: Tensor) -> Tensor:
    """1 1 256, uint8: every level is itself."""
    return _levels(images.device)


@cache
def _levels(device: torch.device) -> Tensor:
    """0 … 255, made once for each device."""
    with torch.inference_mode(False):  # a tensor made in inference mode could not be used in training later
        return torch.arange(256, dtype=torch.uint8, device=device).view(1, 1, 256)


def autocontrast_table(images: Tensor, magnitude: Tensor) -> Tensor:
    """Stretch each channel's levels to 0…255; in float64, as Pillow truncates what Python's floats give."""
    darkest, lightest = (extreme.double() for extreme in images.flatten(2).aminmax(dim=2, keepdim=True))
    spread = (lightest - darkest).clamp(min=1)
    scale = torch.full_like(spread, 255) / spread  # `255 / spread` would multiply by a rounded reciprocal
    levels = identity_table(images)
    stretched = (levels * scale + -darkest * scale).clamp(0, 255).to(torch.uint8)
    return torch.where(lightest > darkest, stretched, levels)


def equalize_table(images: Tensor, magnitude: Tensor) -> Tensor:
    """Spread each channel's levels over 0…255 by their cumulative histogram."""
    pixels = images.flatten(2).long()
    histogram = torch.zeros(*images.shape[:2], 256, dtype=torch.int32, device=images.device)
    histogram.scatter_add_(2, pixels, torch.ones_like(histogram[:, :, :1]).expand_as(pixels))
    lightest_count = histogram.gather(2, pixels.amax(2, keepdim=True))
    step = (pixels.shape[2] - lightest_count) // 255
    darker_count = histogram.cumsum(2, dtype=torch.int32) - histogram
    spread = (step // 2 + darker_count) // step.clamp(min=1)
    # Pillow leaves a channel alone when nearly all of its pixels are of the lightest level.
    return torch.where(step > 0, spread.clamp(max=255).to(torch.uint8), identity_table(images))


def posterize_table(images: Tensor, magnitude: Tensor) -> Tensor:
    """Keep the `magnitude` highest bits, truncated to a whole number."""
    dropped_bits = (8 - magnitude.int()).to(torch.uint8).view(-1, 1, 1)
    return identity_table(images) >> dropped_bits << dropped_bits


def solarize_table(images: Tensor, magnitude: Tensor) -> Tensor:
    """Invert the levels from `magnitude` upwards."""
    levels = identity_table(images)
    return torch.where(levels < magnitude.view(-1, 1, 1), levels, 255 - levels)


def brightness_table(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with black."""
    levels = identity_table(images)
    return blend(torch.zeros_like(levels), levels, magnitude.view(-1, 1, 1))


def contrast_table(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with the mean grey of the image."""
    count = images.shape[2] * images.shape[3]
    total = luminance(images).sum((2, 3), dtype=torch.int32).unsqueeze(2)
    mean = (2 * total + count) // (2 * count)  # rounded to the nearest level
    return blend(mean, identity_table(images), magnitude.view(-1, 1, 1))


# ---- kind 2: a blend with a degenerate image, n C H W (or n 1 H W) ----


def blend(degenerate: Tensor, original: Tensor, factor: Tensor) -> Tensor:
    """degenerate + factor · (original − degenerate) in float32, truncated to uint8; factor in [0, 1]."""
    base = degenerate.float()
    return (base + factor.float() * (original.float() - base)).to(torch.uint8)


def luminance(images: Tensor) -> Tensor:
    """Grey levels by Pillow's integer weights: n C H W → n 1 H W, uint8."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().unbind(1)
    grey = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16
    return grey.to(torch.uint8).unsqueeze(1)


def smooth(images: Tensor) -> Tensor:
    """Pillow's SMOOTH filter: 3×3 ones with a 5 in the middle, over 13; border pixels are copied."""
    if min(images.shape[2:]) < 3:
        return images
    pixels = images.short()
    rows = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * pixels[:, :, 1:-1, 1:-1]
    smoothed = images.clone()
    smoothed[:, :, 1:-1, 1:-1] = (total / 13).round()
    return smoothed


# ---- kind 3: an affine map from output to input pixels, nearest neighbour with black outside ----


def affine_matrix(operation: Tensor, magnitude: Tensor, height: int, width: int) -> Tensor:
    """Six coefficients per operation in 16.16 fixed point, the identity's for other kinds: … → … 6, int32."""
    magnitude = magnitude.double()
    angle, shear_x, shear_y, shift_x, shift_y = (
        torch.where(operation == OPERATIONS.index(name), magnitude, 0.0) for name in AFFINES
    )
    angle = angle * (math.pi / 180)
    cos, sin = angle.cos(), -angle.sin()
    # A pure translation is not in fixed point in Pillow: it moves by whole pixels, rounded half up.
    shift_x, shift_y = (shift_x * width + 0.5).floor(), (shift_y * height + 0.5).floor()
    centre_x, centre_y = width / 2, height / 2
    to_x = centre_x - cos * centre_x - sin * centre_y + shift_x
    to_y = centre_y + sin * centre_x - cos * centre_y + shift_y
    x_by_y, y_by_x = sin + shear_x, shear_y - sin
    half_x, half_y = to_x + cos * 0.5 + x_by_y * 0.5, to_y + y_by_x * 0.5 + cos * 0.5  # pixels' middles
    exact = torch.stack([cos, x_by_y, half_x, y_by_x, cos, half_y], dim=-1)
    return (exact * 65536 + 0.5).floor().int()


def move(images: Tensor, matrix: Tensor) -> Tensor:
    """Fetch each output pixel from where its image's affine map points: n C H W and n 6 → n C H W."""
    height, width = images.shape[2:]
    x_by_x, x_by_y, x_0, y_by_x, y_by_y, y_0 = matrix.view(-1, 6, 1, 1).unbind(1)
    x = torch.arange(width, dtype=torch.int32, device=images.device)
    y = torch.arange(height, dtype=torch.int32, device=images.device).unsqueeze(1)
    column = (x_by_x * x + (x_by_y * y + x_0)) >> 16
    row = (y_by_x * x + (y_by_y * y + y_0)) >> 16
    nearest_column, nearest_row = column.clamp(0, width - 1), row.clamp(0, height - 1)
    inside = (column == nearest_column) & (row == nearest_row)
    return fetch(images, nearest_row * width + nearest_column) * inside.unsqueeze(1)


def fetch(images: Tensor, index: Tensor) -> Tensor:
    """Pixels at flat positions that all channels of an image share: n C H W and n H' W' → n C H' W'."""
    shared = index.long().flatten(1).unsqueeze(1).expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, shared).view(*images.shape[:2], *index.shape[1:])


TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": autocontrast_table,
    "brightness": brightness_table,
    "contrast": contrast_table,
    "equalize": equalize_table,
    "posterize": posterize_table,
    "solarize": solarize_table,
}
DEGENERATES: dict[str, Callable[[Tensor], Tensor]] = {"color": luminance, "sharpness": smooth}
AFFINES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
OPERATIONS = (*TABLES, *DEGENERATES, *AFFINES, "identity")  # a number in the draws is a position in here

RANGES: dict[str, tuple[float, float]] = {  # of the magnitude; (0, 0) where there is none
    "autocontrast": (0, 0),
    "brightness": (0.05, 0.95),
    "contrast": (0.05, 0.95),
    "equalize": (0, 0),
    "posterize": (4, 8),  # bits
    "solarize": (0, 256),  # level
    "color": (0.05, 0.95),
    "sharpness": (0.05, 0.95),
    "rotate": (-30, 30),  # degrees, counter-clockwise
    "shear_x": (-0.3, 0.3),
    "shear_y": (-0.3, 0.3),
    "translate_x": (-0.3, 0.3),  # of the width
    "translate_y": (-0.3, 0.3),  # of the height
    "identity": (0, 0),
}


def apply_operation(name: str, images: Tensor, magnitude: Tensor) -> Tensor:
    """One operation on every image, each with its own magnitude: n C H W and n → n C H W, uint8."""
    if name in TABLES:
        return look_up(images, TABLES[name](images, magnitude))
    if name in DEGENERATES:
        return blend(DEGENERATES[name](images), images, magnitude.view(-1, 1, 1, 1))
    if name in AFFINES:
        operation = torch.full_like(magnitude, OPERATIONS.index(name))
        return move(images, affine_matrix(operation, magnitude, *images.shape[2:]))
    return images
