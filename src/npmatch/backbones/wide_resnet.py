"""Wide residual networks as the FixMatch family uses them: WRN-28-k and, with a fourth stage, WRN-37-k.

Zagoruyko & Komodakis (2016), pre-activation blocks, LeakyReLU 0.1, slow batch norm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """norm-act-conv twice, plus the input or its 1×1 projection."""

    def __init__(self, inputs: int, outputs: int, stride: int, activate_input: bool, momentum: float) -> None:
        """`activate_input`: the shortcut also gets the activated input, as in the network's first block."""
        super().__init__()
        self.activate_input, self.stride = activate_input, stride
        self.norm1 = norm(inputs, momentum)
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.norm2 = norm(outputs, momentum)
        self.dropout = nn.Dropout(0.0)  # off; MC dropout turns it on
        self.conv2 = conv(outputs, outputs, 3, 1)
        self.shortcut = conv(inputs, outputs, 1, stride) if inputs != outputs or stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """N C H W → N C' H' W'."""
        # Paper's code: later stages' first convolution takes the raw input, leaving its norm unused; here: the
        # activated input as in the WRN paper, because an unused norm is a parameter that never learns.
        out = activate(self.norm1(x))
        carried = out if self.activate_input else x
        if self.shortcut is not None:
            carried = self.shortcut(carried)
        out = self.conv2(self.dropout(activate(self.norm2(self.conv1(out)))))
        total: Tensor = carried + out
        return total


class WideResNet(nn.Module):
    """Stages of 16k, 32k, 64k (and 128k) channels with 4 blocks each; pooled features out."""

    def __init__(
        self,
        widen: int,
        stages: int = 3,
        in_channels: int = 3,
        first_stride: int = 1,
        momentum: float = 0.001,
    ) -> None:
        """`momentum` is PyTorch's: the share of the new batch in the running statistics."""
        super().__init__()
        channels = [16] + [16 * widen * 2**stage for stage in range(stages)]
        self.stem = conv(in_channels, 16, 3, 1)
        blocks = []
        for stage in range(stages):
            for number in range(4):
                inputs = channels[stage] if number == 0 else channels[stage + 1]
                first = stage == 0 and number == 0
                stride = first_stride if first else 2 if number == 0 else 1
                blocks.append(Block(inputs, channels[stage + 1], stride, first, momentum))
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm(channels[-1], momentum)
        self.num_features = channels[-1]
        # Replaces the forward pass in training, for speed: on CUDA `features` of backbones/fused.
        self.training_pass: Callable[[WideResNet, Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """N C H W → N F."""
        if self.training and self.training_pass is not None and _is_usual(x):
            return self.training_pass(self, x)
        out: Tensor = activate(self.norm(self.blocks(self.stem(x))))
        return out.mean((2, 3))


def _is_usual(x: Tensor) -> bool:
    """Whether a pass is under autocast and needs no gradient of the images: all that the fused one computes."""
    return torch.is_autocast_enabled(x.device.type) and not x.requires_grad


def activate(x: Tensor) -> Tensor:
    """LeakyReLU 0.1."""
    return F.leaky_relu(x, 0.1)


def norm(channels: int, momentum: float) -> nn.BatchNorm2d:
    """Batch norm with the eps of the FixMatch family."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=momentum)


def conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    """A convolution without bias (a norm follows), Kaiming-normal for LeakyReLU."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="leaky_relu")
    return layer
