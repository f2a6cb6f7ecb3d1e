"""A backbone that scales its input to the size it was made for, and can keep its batch-norm statistics."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from npmatch.backbones.blocks import in_blocks


def scaled_to(x: Tensor, side: int | None) -> Tensor:
    """Images N C H W scaled to `side` pixels, or as they are if it is None."""
    if side is None or tuple(x.shape[-2:]) == (side, side):
        return x
    return F.interpolate(x, (side, side), mode="bilinear", antialias=side < x.shape[-1])


class Prepared(nn.Module):
    """`network` on images scaled to one size; with `frozen_norms`, batch norm uses its running statistics always."""

    def __init__(self, network: nn.Module, input_size: int | None, frozen_norms: bool) -> None:
        """`input_size` is the side in pixels, None for the images' own; norms' scales and shifts are always trained."""
        super().__init__()
        self.network = network
        self.num_features = int(network.num_features)  # type: ignore[arg-type]
        self.input_size = input_size
        self.frozen_norms = frozen_norms
        self.train(self.training)  # a new module is in training mode without a call

    def forward(self, x: Tensor) -> Tensor:
        """N C H W → N F."""
        return self._features(x) if self.training else in_blocks(self._features, x, self.input_size)

    def _features(self, x: Tensor) -> Tensor:
        features: Tensor = self.network(scaled_to(x, self.input_size))
        return features

    def train(self, mode: bool = True) -> Prepared:
        """Training mode; frozen norms stay in evaluation mode."""
        super().train(mode)
        if self.frozen_norms:
            for module in self.network.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self
