"""Run by test_fused.py in a process of its own: Triton reads TRITON_INTERPRET when its kernels are defined."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from npmatch.backbones import WideResNet
from npmatch.backbones.fused import convolution, network, normalisation
from npmatch.heads.sync_norm import learning_from_first, synchronise_norms

convolution.PROGRAMS = normalisation.PROGRAMS = normalisation.PARTS = 2  # the interpreter runs programs in turn
convolution.PAIRS, normalisation.ELEMENTS = 16, 256
close = torch.testing.assert_close


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape).contiguous(memory_format=torch.channels_last).requires_grad_()


def check_convolution(channels: int, out: int, height: int, width: int) -> None:
    x, weight, other = rows(3, channels, height, width), rows(out, channels, 3, 3), rows(3, out, height, width)
    y = F.conv2d(x, weight, padding=1)
    dy = rows(*y.shape).detach()
    y.backward(dy)
    with torch.no_grad():
        for want, found, partial in (
            (y, *convolution.convolve(x, weight)),
            (y + other, *convolution.convolve(x, weight, other)),
        ):
            close(found, want, rtol=1e-4, atol=1e-4)
            sums = torch.stack([want.sum((0, 2, 3)), want.square().sum((0, 2, 3))])
            close(partial.sum(1), sums, rtol=1e-4, atol=1e-3)
        close(convolution.input_gradient(dy, weight), x.grad, rtol=1e-4, atol=1e-4)
        close(convolution.weight_gradient(x, dy), weight.grad, rtol=1e-4, atol=1e-4)


def check_norm(channels: int) -> None:
    a, b = rows(3, channels, 4, 8), rows(3, channels, 4, 8)
    norm = nn.BatchNorm2d(channels, momentum=0.3)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias)
    ours = copy.deepcopy(norm)
    x = a + b
    y = F.leaky_relu(norm(x), 0.1)
    dy, carried = torch.randn_like(y), torch.randn_like(y)
    (y * dy + x * carried).sum().backward()
    with torch.no_grad():
        total, partial = normalisation.sums(a, b)
        close(total, x)
        statistics = normalisation.take_statistics(total, partial, ours)
        close(normalisation.activate(total, statistics), y, rtol=1e-5, atol=1e-5)
        dx, d_weight, d_bias = normalisation.gradient(dy, total, statistics, carried)
    close(dx, a.grad, rtol=1e-4, atol=1e-4)
    close(d_weight, norm.weight.grad, rtol=1e-4, atol=1e-4)
    close(d_bias, norm.bias.grad, rtol=1e-4, atol=1e-4)
    close(ours.running_mean, norm.running_mean)
    close(ours.running_var, norm.running_var)


def check_network(learning: int | None = None) -> None:
    """`learning`: only the first images get gradients, from the norms of both networks."""
    plain = WideResNet(1, stages=2, momentum=0.1).to(memory_format=torch.channels_last)
    del plain.blocks[6:], plain.blocks[1:3]  # a block that changes the channels, some that do not, one with stride 2
    synchronise_norms(plain)
    ours = copy.deepcopy(plain)
    x, d_features = torch.randn(4, 3, 8, 8), torch.randn(4, 32)
    with learning_from_first(plain, learning), learning_from_first(ours, learning):
        f_plain, f_ours = plain(x), network.features(ours, x, torch.float32)
    close(f_ours, f_plain, rtol=1e-4, atol=1e-4)
    f_plain[:learning].backward(d_features[:learning])
    f_ours[:learning].backward(d_features[:learning])
    for (name, p), q in zip(plain.named_parameters(), ours.parameters(), strict=True):
        close(q.grad, p.grad, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    for p, q in zip(plain.buffers(), ours.buffers(), strict=True):
        close(q, p, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    check_convolution(4, 16, 4, 8)
    check_convolution(16, 32, 4, 8)
    check_convolution(16, 16, 6, 24)  # pairs of a row that are no power of two
    check_convolution(16, 16, 16, 8)  # programs that share an image
    check_norm(16)
    check_network()
    check_network(learning=3)
