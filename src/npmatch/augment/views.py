"""The interface of a view: random draws for n images, and their application, as separate functions.

Draws are made for a whole batch and can be sliced, so that several ranks can share the draws of one batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from npmatch.distributed.ranks import local_share

Draws = TypeVar("Draws", bound=tuple[Tensor, ...])  # a NamedTuple of tensors with leading dimension n


class View(ABC, Generic[Draws]):
    """A random change of images: n C H W, uint8 → n C S S, uint8."""

    @abstractmethod
    def draw(self, n: int, device: torch.device) -> Draws:
        """All random numbers of n views, from the device's default generator."""

    @abstractmethod
    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """The views that `draws` describe; a deterministic function."""

    def __call__(self, images: Tensor) -> Tensor:
        """New views of `images`; every rank draws for the global batch and applies the draws of its own share."""
        share = local_share()
        draws = self.draw(share.world * len(images), images.device)
        return self.apply(images, draws if share.world == 1 else slice_draws(draws, share.block(len(images))))


def slice_draws(draws: Draws, rows: slice) -> Draws:
    """The draws of some images of the batch."""
    return type(draws)(*(values[rows] for values in draws))


class NoDraws(NamedTuple):
    """The draws of a view that has none, or that draws when it is applied."""

    none: Tensor  # n 0


@dataclass(frozen=True)
class Identity(View[NoDraws]):
    """The images unchanged."""

    def draw(self, n: int, device: torch.device) -> NoDraws:
        """No draws, n 0."""
        return NoDraws(torch.empty(n, 0, device=device))

    def apply(self, images: Tensor, draws: NoDraws) -> Tensor:
        """The same images."""
        return images


@dataclass(frozen=True)
class FunctionView(View[NoDraws]):
    """A user's function from uint8 batches to uint8 batches, with its own random draws."""

    function: Callable[[Tensor], Any]

    def draw(self, n: int, device: torch.device) -> NoDraws:
        """No draws, n 0: the function draws when it is applied."""
        return NoDraws(torch.empty(n, 0, device=device))

    def apply(self, images: Tensor, draws: NoDraws) -> Tensor:
        """The function's result for these images."""
        changed: Tensor = self.function(images)
        return changed
