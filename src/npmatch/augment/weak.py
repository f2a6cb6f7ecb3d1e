"""Weak views: a horizontal flip, then a crop, after reflect padding or resized."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch.augment.operations import fetch
from npmatch.augment.views import View


class CropDraws(NamedTuple):
    """One flip and one crop per image."""

    flip: Tensor  # n, bool
    box: Tensor  # n 2, int64: offsets (PadCrop); n 4, float32: area, aspect, position (ResizedCrop)


def draw_flip(n: int, device: torch.device, wanted: bool) -> Tensor:
    """n, bool: each true with probability ½ if flips are wanted, else false."""
    return torch.rand(n, device=device) < (0.5 if wanted else 0.0)


@dataclass(frozen=True)
class PadCrop(View[CropDraws]):
    """Flip, pad every side by reflection, and crop to the original size."""

    padding: int = 4
    flip: bool = True

    def draw(self, n: int, device: torch.device) -> CropDraws:
        """The box is the top and left offset in the padded image, each in 0 … 2 · padding."""
        box = torch.randint(2 * self.padding + 1, (n, 2), device=device)
        return CropDraws(draw_flip(n, device, self.flip), box)

    def apply(self, images: Tensor, draws: CropDraws) -> Tensor:
        """n C H W → n C H W; the padded image is never built."""
        _, _, height, width = images.shape
        top, left = (draws.box - self.padding).unbind(1)
        row = _reflect(top, height)
        column = _reflect(left, width)
        column = torch.where(draws.flip.unsqueeze(1), width - 1 - column, column)
        return fetch(images, row.unsqueeze(2) * width + column.unsqueeze(1))


def _reflect(start: Tensor, size: int) -> Tensor:
    """`size` positions from each start on, mirrored at the borders of 0 … size − 1: n → n size."""
    position = (start.unsqueeze(1) + torch.arange(size, device=start.device)).abs()
    return size - 1 - (size - 1 - position).abs()


@dataclass(frozen=True)
class ResizedCrop(View[CropDraws]):
    """Flip, and stretch a box of random area and aspect to one size, bilinearly."""

    size: tuple[int, int]  # height and width of the views
    scale: tuple[float, float] = (0.2, 1.0)  # of the image's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width : height in pixels, log-uniform
    flip: bool = True

    def draw(self, n: int, device: torch.device) -> CropDraws:
        """The box is its share of the area, its aspect, and its top and left in the remaining space, in [0, 1]."""
        area, aspect, top, left = torch.rand(n, 4, device=device).unbind(1)
        area = self.scale[0] + (self.scale[1] - self.scale[0]) * area
        shortest, longest = math.log(self.ratio[0]), math.log(self.ratio[1])
        aspect = torch.exp(shortest + (longest - shortest) * aspect)
        return CropDraws(draw_flip(n, device, self.flip), torch.stack([area, aspect, top, left], dim=1))

    def apply(self, images: Tensor, draws: CropDraws) -> Tensor:
        """n C H W → n C S S."""
        image_aspect = images.shape[3] / images.shape[2]
        area, aspect, top, left = draws.box.unbind(1)
        # A box larger than the image is clipped; torchvision draws again, which has no static shape.
        width = (area * aspect / image_aspect).sqrt().clamp(max=1)
        height = (area / aspect * image_aspect).sqrt().clamp(max=1)
        y = _pixel_middles(top * (1 - height), height, self.size[0])
        x = _pixel_middles(left * (1 - width), width, self.size[1])
        x = torch.where(draws.flip.unsqueeze(1), -x, x)
        x = x.unsqueeze(1).expand(-1, self.size[0], -1)
        y = y.unsqueeze(2).expand(-1, -1, self.size[1])
        grid = torch.stack([x, y], dim=3)
        views = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
        return views.round_().to(torch.uint8)


def _pixel_middles(start: Tensor, extent: Tensor, size: int) -> Tensor:
    """Middles of `size` equal parts of each interval, from fractions of the image to [−1, 1]: n → n size."""
    middle = (torch.arange(size, device=start.device) + 0.5) / size
    return 2 * (start.unsqueeze(1) + extent.unsqueeze(1) * middle) - 1
