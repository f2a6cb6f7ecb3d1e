"""A pretrained network whose weights stay as they are, and a small trained layer on top: for machines without a GPU.

The trunk's activations of an image are the pooled outputs of its last stages and its pooled features. They are computed
once for a few views of every training image, so that a step of training costs no more than the layer on top.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from npmatch.backbones.blocks import in_blocks
from npmatch.backbones.prepared import scaled_to
from npmatch.distributed.ranks import local_share

STAGES = 2  # last stages whose outputs are taken, besides the features: objects need the last, textures the one before
WIDTH = 256  # of the trained layer
DROPOUT = 0.5


class FrozenTrunk(nn.Module):
    """Images N C H W, or the activations N D 1 1 of images, to features N F; only what follows the trunk is trained."""

    num_features = WIDTH

    def __init__(self, network: nn.Module, input_size: int | None, in_channels: int) -> None:
        """`network` is pretrained; of a network that is not timm's, the features are all that is taken."""
        super().__init__()
        self.trunk = network.eval().requires_grad_(False)
        self.input_size = input_size
        with torch.no_grad():
            self.parts = [part.shape[1] for part in self._parts(torch.zeros(1, in_channels, 64, 64))]
        d = sum(self.parts)
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("scale", torch.ones(d))
        self.top = nn.Sequential(SharedDropout(DROPOUT), nn.Linear(d, WIDTH), nn.ReLU())

    def _parts(self, x: Tensor) -> list[Tensor]:
        """Pooled outputs of the last stages and the pooled features, each N D."""
        x = scaled_to(x, self.input_size)
        if not hasattr(self.trunk, "forward_intermediates"):
            return [self.trunk(x)]
        last, stages = self.trunk.forward_intermediates(x, indices=STAGES)  # type: ignore[operator]
        return [*(stage.mean((2, 3)) for stage in stages), self.trunk.forward_head(last)]  # type: ignore[operator]

    def activations(self, x: Tensor) -> Tensor:
        """N C H W → N D."""
        return in_blocks(self._joined, x, self.input_size)

    def _joined(self, x: Tensor) -> Tensor:
        return torch.cat([part.float() for part in self._parts(x)], dim=1)

    @torch.no_grad()
    def standardise(self, activations: Tensor) -> None:
        """Takes the mean and the scale of each activation from examples n D; each part has the same weight in all."""
        self.mean.copy_(activations.mean(0))  # type: ignore[operator]
        d, std = sum(self.parts), activations.std(0) + 1e-5
        weight = torch.cat([torch.full((n,), (d / (len(self.parts) * n)) ** 0.5) for n in self.parts])
        self.scale.copy_(weight.to(std.device) / std)  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        """N C H W or N D 1 1 → N F."""
        is_cached = tuple(x.shape[1:]) == (sum(self.parts), 1, 1)
        activations = x.flatten(1) if is_cached else self.activations(x)
        features: Tensor = self.top((activations - self.mean) * self.scale)  # type: ignore[operator]
        return features

    def train(self, mode: bool = True) -> FrozenTrunk:
        """Training mode of what is trained; the trunk stays in evaluation mode."""
        super().train(mode)
        self.trunk.eval()
        return self


class SharedDropout(nn.Dropout):
    """Dropout whose draws are made for the whole batch: several ranks drop what one rank would."""

    def forward(self, x: Tensor) -> Tensor:
        """N D → N D."""
        if not self.training:
            return x
        share = local_share()
        kept = torch.rand(share.world * len(x), x.shape[1], device=x.device) >= self.p
        return x * kept[share.block(len(x))] / (1 - self.p)


def fast_activations(backbone: FrozenTrunk, example: Tensor) -> Callable[[Tensor], Tensor]:
    """`backbone.activations` for batches like the example; on a CPU about twice as fast, with batch norm folded in."""
    if example.device.type != "cpu":
        return backbone.activations

    class Activations(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = backbone

        def forward(self, x: Tensor) -> Tensor:
            return self.backbone.activations(x)

    layout = example.contiguous(memory_format=torch.channels_last)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # torch would trace a second time to compare; a comparison of what is used takes less.
            trace = torch.jit.trace(Activations().eval(), layout, check_trace=False)  # type: ignore[no-untyped-call]
            traced, expected = torch.jit.freeze(trace), backbone.activations(layout)
            torch.testing.assert_close(traced(layout), expected, rtol=0, atol=0.01 * float(expected.abs().max()))
    except Exception:  # not every network can be traced; it is then slower
        return backbone.activations

    return lambda x: in_blocks(traced, x, backbone.input_size)
