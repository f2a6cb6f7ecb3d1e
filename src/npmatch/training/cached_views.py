"""Views whose activations were computed before training: a step draws one of them for each image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npmatch.data import ArrayImages, RawBatch
from npmatch.distributed.ranks import local_share
from npmatch.types import Batch, Views


def rows_as_images(n: int) -> ArrayImages:
    """n images of 4×1×1 bytes that hold their own row number, for a stream of batches to carry in place of pixels."""
    return ArrayImages(torch.arange(n, dtype=torch.int32).view(torch.uint8).view(n, 4, 1, 1))


def rows_of(images: Tensor) -> Tensor:
    """The row numbers that images hold: n 4 1 1, uint8 → n, int64."""
    return images.flatten(1).contiguous().view(torch.int32).flatten().long()


@dataclass
class CachedViews:
    """Makes an algorithm's batch of row numbers: activations n D 1 1 of a view that is drawn for each image."""

    weak: Tensor  # V N D
    strong: Tensor  # V N D
    views: Views

    def __call__(self, raw: RawBatch) -> Batch:
        """The batch's views; each image of each view has its own draw."""
        x, u = rows_of(raw.x), rows_of(raw.u)
        return Batch(
            x=self._pick(self.weak, x),
            y=raw.y,
            weak=tuple(self._pick(self.weak, u) for _ in range(self.views.weak)),
            strong=tuple(self._pick(self.strong, u) for _ in range(self.views.strong)),
            index=raw.index,
            labeled=raw.labeled,
            x_weak=tuple(self._pick(self.weak, x) for _ in range(self.views.labeled_weak)),
            x_strong=tuple(self._pick(self.strong, x) for _ in range(self.views.labeled_strong)),
        )

    def _pick(self, cached: Tensor, rows: Tensor) -> Tensor:
        """Every rank draws for the global batch and uses the draws of its own share."""
        share = local_share()
        draws = torch.randint(len(cached), (share.world * len(rows),), device=rows.device)
        return cached[draws[share.block(len(rows))], rows].float()[..., None, None]
