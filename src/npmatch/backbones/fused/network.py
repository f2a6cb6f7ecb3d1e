"""A wide residual network's training pass on CUDA, forward and backward written out over fused kernels.

The computation is that of `WideResNet.forward` in training mode under bfloat16 autocast. Written out, every sum,
normalisation and residual is one pass over memory; autograd and compilers need about twice as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from npmatch.backbones.fused import convolution, normalisation

if TYPE_CHECKING:
    from npmatch.backbones.wide_resnet import Block, WideResNet


def features(network: WideResNet, x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Pooled features N F in float32 of images N C H W."""
    counters = [norm.num_batches_tracked for norm in _norms(network) if norm.track_running_stats]
    if counters:  # empty where statistics are frozen
        torch._foreach_add_(cast("list[Tensor]", counters), 1)
    learning = getattr(network.norm, "learning", None)
    keep = (len(x) if learning is None else learning) if torch.is_grad_enabled() else 0
    f: Tensor = _Features.apply(x, network, dtype, keep, *network.parameters())
    return f


def is_possible(network: nn.Module, image_shape: tuple[int, int, int]) -> bool:
    """Whether `features` computes the same as the network's own forward on images C H W."""
    channels, height, width = image_shape
    dropping = any(m.p > 0 for m in network.modules() if isinstance(m, nn.Dropout))
    norms = (module for module in network.modules() if isinstance(module, _BatchNorm))
    plain_norms = all(type(norm) is nn.BatchNorm2d or getattr(norm, "is_plain", False) for norm in norms)
    even = width % 8 == 0 and height % 8 == 0  # at every stage: convolution.py takes pixels in pairs
    return plain_norms and not dropping and even and channels <= 4


def _norms(network: nn.Module) -> list[_BatchNorm]:
    return [m for m in network.modules() if isinstance(m, _BatchNorm)]


@dataclass
class _Normed:
    """A tensor before and after norm and activation, and the statistics between."""

    before: Tensor
    statistics: Tensor
    after: Tensor

    def first(self, images: int) -> _Normed:
        """That of the first images alone."""
        return _Normed(self.before[:images], self.statistics, self.after[:images])


@dataclass
class _Passed:
    """The tensors that a block's backward pass needs."""

    block: Block
    entered: _Normed
    inner: _Normed


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, network: WideResNet, dtype: torch.dtype, keep: int, *parameters: Tensor
    ) -> Tensor:
        weights = _cast(network, dtype)
        image = _with_four_channels(x).to(dtype, memory_format=torch.channels_last)
        y, partial = _convolve_and_sum(image, weights[network.stem], 1)
        blocks = []
        for block in cast("list[Block]", network.blocks):
            entered = _normed(y, partial, block.norm1)
            carried = entered.after if block.activate_input else entered.before
            if block.shortcut is not None:
                carried = _convolve(carried, weights[block.shortcut], block.stride)
            inner = _normed(*_convolve_and_sum(entered.after, weights[block.conv1], block.stride), block.norm2)
            y, partial = _convolve_and_sum(inner.after, weights[block.conv2], 1, carried)
            if keep:
                blocks.append(_Passed(block, entered.first(keep), inner.first(keep)))
        last = _normed(y, partial, network.norm)
        if keep:
            ctx.network, ctx.weights, ctx.image, ctx.blocks = network, weights, image[:keep], blocks
            ctx.last, ctx.is_part = last.first(keep), keep < len(x)
        return last.after.mean((2, 3), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, d_features: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        network, weights, last = ctx.network, ctx.weights, ctx.last
        learning, _, height, width = last.after.shape
        d_last = torch.empty_like(last.after).copy_((d_features[:learning] / (height * width))[:, :, None, None])
        gradients: dict[Tensor, Tensor] = {}

        def through_norm(norm: nn.BatchNorm2d, dy: Tensor, normed: _Normed, carried: Tensor | None = None) -> Tensor:
            dx, gradients[norm.weight], gradients[norm.bias] = normalisation.gradient(
                dy, normed.before, normed.statistics, carried, ctx.is_part
            )
            return dx

        def through_conv(layer: nn.Conv2d, dy: Tensor, x: Tensor, stride: int) -> Tensor:
            dx, gradients[layer.weight] = _convolution_gradients(dy, x, weights[layer], stride)
            return dx

        dy = through_norm(network.norm, d_last, last)
        while ctx.blocks:
            passed = ctx.blocks.pop()  # frees its memory after this iteration
            block, entered, inner = passed.block, passed.entered, passed.inner
            d_hidden = through_norm(block.norm2, through_conv(block.conv2, dy, inner.after, 1), inner)
            d_after = through_conv(block.conv1, d_hidden, entered.after, block.stride)
            d_carried = dy
            if block.shortcut is not None:
                source = entered.after if block.activate_input else entered.before
                d_carried = through_conv(block.shortcut, dy, source, block.stride)
            if block.activate_input:
                dy = through_norm(block.norm1, d_after + d_carried, entered)
            else:
                dy = through_norm(block.norm1, d_after, entered, d_carried)
        stem = convolution.weight_gradient(ctx.image, dy)[:, : network.stem.in_channels]  # images need no gradient
        gradients[network.stem.weight] = stem.contiguous(memory_format=torch.channels_last)
        wanted = {p: torch.empty_like(p) for p in network.parameters()}
        # All to float32. One call copies many tensors if they have one dtype, and each the strides of its copy.
        for dtype in dict.fromkeys(g.dtype for g in gradients.values()):
            of_type = [p for p in wanted if gradients[p].dtype == dtype]
            torch._foreach_copy_([_flat(wanted[p]) for p in of_type], [_flat(gradients[p]) for p in of_type])
        return (None, None, None, None, *wanted.values())


def _flat(weight: Tensor) -> Tensor:
    """A view of the numbers of a norm's weights, or of a filter bank's in channels-last memory, one after the other."""
    return weight.permute(0, 2, 3, 1).view(-1) if weight.dim() == 4 else weight


def _normed(y: Tensor, partial: Tensor, norm: nn.BatchNorm2d) -> _Normed:
    statistics = normalisation.take_statistics(y, partial, norm)
    return _Normed(y, statistics, normalisation.activate(y, statistics))


def _cast(network: WideResNet, dtype: torch.dtype) -> dict[nn.Conv2d, Tensor]:
    """All convolutions' weights in `dtype`, channels last, copied in one call."""
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    sources = [layer.weight.detach() for layer in layers]
    sources[0] = _with_four_channels(sources[0])
    targets = [torch.empty_like(w, dtype=dtype, memory_format=torch.channels_last) for w in sources]
    torch._foreach_copy_(targets, sources)
    return dict(zip(layers, targets, strict=True))


def _with_four_channels(x: Tensor) -> Tensor:
    """Images or the stem's weights, padded with zeros to four channels, a power of two."""
    return F.pad(x, (0, 0, 0, 0, 0, 4 - x.shape[1]))


def _convolve_and_sum(x: Tensor, weight: Tensor, stride: int, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A convolution's output (plus `other`), and its sums for the norm that follows."""
    if _is_small(weight, stride, x):
        return convolution.convolve(x, weight, other)
    return normalisation.sums(_convolve(x, weight, stride), other)


def _convolve(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2)


def _convolution_gradients(dy: Tensor, x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Gradients of a convolution's inputs and weights."""
    if _is_small(weight, stride, dy):
        return convolution.input_gradient(dy, weight), convolution.weight_gradient(x, dy)
    padding = weight.shape[2] // 2
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, weight, None, [stride, stride], [padding, padding], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return dx, dw


def _is_small(weight: Tensor, stride: int, y: Tensor) -> bool:
    """Whether our own kernels are faster than the library's; `y` is as wide as the convolution's inputs and outputs."""
    few = max(weight.shape[:2]) <= convolution.MOST_CHANNELS
    return few and weight.shape[2] == 3 and stride == 1 and y.shape[3] <= convolution.WIDEST
