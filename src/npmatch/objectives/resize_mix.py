"""ResizeMix (Qin et al., 2020): an image is made smaller and pasted into a box of another; labels mix by area.

Boxes are drawn on the device. Shapes do not depend on them: pixels inside a box are chosen by a mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SIDES = (0.1, 0.8)  # least and largest side of a box, as a share of the image's
CENTRE = 0.9  # share of the pasted image's side that is kept: its borders are cut off


class Span(NamedTuple):
    """The positions start … stop − 1 of `size`, in one direction of an image; start and stop are 0-d int64."""

    start: Tensor
    stop: Tensor
    size: int

    def contains(self) -> Tensor:
        """Bool, `size`: which positions are inside."""
        positions = torch.arange(self.size, device=self.start.device)
        return (positions >= self.start) & (positions < self.stop)

    def sources(self) -> Tensor:
        """Int64, `size`: where in the pasted image each position inside comes from, by nearest neighbour."""
        kept = max(1, int(CENTRE * self.size))
        offset = torch.arange(self.size, device=self.start.device) - self.start
        source = (self.size - kept) // 2 + offset * kept // (self.stop - self.start).clamp(min=1)
        return source.clamp(0, self.size - 1)


class Box(NamedTuple):
    """A rectangle of an image, which may be empty."""

    rows: Span
    columns: Span

    def kept_share(self) -> Tensor:
        """λ, 0-d: the share of the pixels that lie outside, which keep the label of their image."""
        area = (self.rows.stop - self.rows.start) * (self.columns.stop - self.columns.start)
        return 1 - area / (self.rows.size * self.columns.size)


def draw_box(images: Tensor, alpha: float) -> Box:
    """A box for images n C H W: side 0.1 + 0.7·√Beta(α, α) of theirs, its centre uniform, clipped to the image."""
    concentration = torch.full((), alpha, device=images.device)
    ratio = torch.distributions.Beta(concentration, concentration, validate_args=False).sample().sqrt()
    side = SIDES[0] + ratio * (SIDES[1] - SIDES[0])

    def draw_span(size: int) -> Span:
        half = (side * size).long() // 2
        centre = torch.randint(size, (), device=images.device)
        return Span((centre - half).clamp(min=0), (centre + half).clamp(max=size), size)

    return Box(draw_span(images.shape[2]), draw_span(images.shape[3]))


def paste(images: Tensor, pasted: Tensor, box: Box) -> Tensor:
    """Images n C H W, each with the centre of the image of the same row in `pasted`, resized, in its box."""
    resized = pasted.index_select(2, box.rows.sources()).index_select(3, box.columns.sources())
    inside = box.rows.contains()[:, None] & box.columns.contains()
    return torch.where(inside, resized, images)


def shuffle_within(member: Tensor) -> Tensor:
    """Bool n → int64 n: a shuffle of the members among themselves; other rows get some position."""
    members_first = (torch.rand(len(member), device=member.device) + ~member).argsort()
    return members_first[(member.long().cumsum(0) - 1).clamp(min=0)]


def draw_each(allowed: Tensor) -> Tensor:
    """Bool n m → int64 n: for each row one of the columns it allows, all equally likely; 0 if it allows none."""
    return torch.where(allowed, torch.rand(allowed.shape, device=allowed.device), -1.0).argmax(-1)
