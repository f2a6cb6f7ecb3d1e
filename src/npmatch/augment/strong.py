"""Strong views: RandAugment and cutout, then a weak view. Every image has its own random draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from npmatch.augment.operations import (
    AFFINES,
    DEGENERATES,
    OPERATIONS,
    RANGES,
    TABLES,
    affine_matrix,
    apply_operation,
    blend,
    identity_table,
    look_up,
    move,
)
from npmatch.augment.pixels import constant
from npmatch.augment.views import View
from npmatch.augment.weak import CropDraws


class StrongDraws(NamedTuple):
    """The random choices for each image."""

    operation: Tensor  # n slots, int64: positions in OPERATIONS
    magnitude: Tensor  # n slots, float32: in the operation's own unit
    square: Tensor  # n 3, float32: x and y of the cutout's centre and its side, in [0, 1]
    flip: Tensor  # as in CropDraws
    box: Tensor


@dataclass(frozen=True)
class Strong(View[StrongDraws]):
    """`operations` operations of RandAugment, a cutout filled with one colour, then `weak`."""

    weak: View[CropDraws]
    fill: tuple[int, ...]  # one level per channel
    operations: int = 3
    cutout: float = 0.5  # largest side, as a share of the image's width

    def draw(self, n: int, device: torch.device) -> StrongDraws:
        """Operations with replacement, magnitudes uniform in their ranges, a square at a uniform position."""
        operation = torch.randint(len(OPERATIONS), (n, self.operations), device=device)
        low, high = (constant(tuple(RANGES[name][end] for name in OPERATIONS), torch.float32, device) for end in (0, 1))
        magnitude = torch.lerp(low[operation], high[operation], torch.rand(n, self.operations, device=device))
        square = torch.rand(n, 3, device=device)
        square[:, 2] *= self.cutout
        return StrongDraws(operation, magnitude, square, *self.weak.draw(n, device))

    def apply(self, images: Tensor, draws: StrongDraws) -> Tensor:
        """n C H W → n C S S."""
        randaugment = apply_grouped if images.device.type == "cpu" else apply_static
        images = randaugment(images, draws.operation, draws.magnitude)
        if self.cutout > 0:
            images = cut_out(images, draws.square, self.fill)
        return self.weak.apply(images, CropDraws(draws.flip, draws.box))


def apply_static(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """RandAugment for a captured graph: each kind of operation on all images, the identity for the others."""
    matrices = affine_matrix(operation, magnitude, *images.shape[2:])
    for chosen, amount, matrix in zip(*(t.unbind(1) for t in (operation, magnitude, matrices)), strict=True):
        table = identity_table(images)
        for name, make_table in TABLES.items():
            is_chosen = (chosen == OPERATIONS.index(name)).view(-1, 1, 1)
            table = torch.where(is_chosen, make_table(images, amount), table)
        images = look_up(images, table)

        degenerate = images  # blending an image with itself does not change it
        for name, make_degenerate in DEGENERATES.items():
            is_chosen = (chosen == OPERATIONS.index(name)).view(-1, 1, 1, 1)
            degenerate = torch.where(is_chosen, make_degenerate(images), degenerate)
        images = blend(degenerate, images, amount.view(-1, 1, 1, 1))

        images = move(images, matrix)
    return images


def apply_grouped(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """RandAugment for the CPU: each operation on its own images alone. The same views as `apply_static`."""
    matrices = affine_matrix(operation, magnitude, *images.shape[2:])
    place = torch.arange(len(images))  # which image is in each row; the order is restored at the end
    for chosen, amount, matrix in zip(*(t.unbind(1) for t in (operation, magnitude, matrices)), strict=True):
        order = chosen[place].argsort()
        place, images = place[order], images.index_select(0, order)
        amount = amount[place]
        ends = chosen.bincount(minlength=len(OPERATIONS)).cumsum(0).tolist()
        start = 0
        for name, end in zip((*TABLES, *DEGENERATES), ends, strict=False):
            if start < end:
                group = images[start:end]
                group.copy_(apply_operation(name, group, amount[start:end]))
            start = end
        end = ends[OPERATIONS.index(AFFINES[-1])]
        group = images[start:end]
        group.copy_(move(group, matrix[place[start:end]]))
    return images.index_select(0, place.argsort())


def cut_out(images: Tensor, square: Tensor, fill: tuple[int, ...]) -> Tensor:
    """Paint every pixel that the image's square touches: n C H W and n 3 → n C H W."""
    height, width = images.shape[2:]
    x, y, side = square.unsqueeze(2).unbind(1)
    inside = (
        _touched(y * height, side * width, height).unsqueeze(2) & _touched(x * width, side * width, width).unsqueeze(1)
    ).unsqueeze(1)
    colour = constant(fill, torch.uint8, images.device).view(-1, 1, 1)
    return images + (colour - images) * inside  # modulo 256; several times faster than torch.where on a CPU


def _touched(middle: Tensor, side: Tensor, size: int) -> Tensor:
    """Which of `size` pixels the interval of length `side` around `middle` touches: n 1 → n size."""
    pixel = torch.arange(size, device=middle.device)
    return (pixel >= (middle - side / 2).floor()) & (pixel <= middle + side / 2)
