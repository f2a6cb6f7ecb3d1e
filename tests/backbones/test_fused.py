"""The hand-written training pass of a wide residual network against autograd, and when it is used."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from npmatch.backbones import BackboneConfig, WideResNet, make_backbone

pytest.importorskip("triton")

needs_cuda = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_kernels_agree_with_autograd_in_tritons_interpreter():
    script = Path(__file__).with_name("fused_against_autograd.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]


def test_programs_of_a_convolution_are_as_many_as_run_at_once():
    from npmatch.backbones.fused.convolution import _rows

    for height in (8, 24, 32, 96):
        for blocks in (1, 16, 128, 240, 275):
            assert height % _rows(height, blocks) == 0
    assert _rows(32, 240) == 32  # 960 images of 32 × 32: all run at once, and no row is loaded twice
    assert _rows(32, 128) == 16
    assert _rows(5, 1) == 5


def test_it_is_used_only_where_it_computes_the_same():
    from npmatch.backbones.fused.network import is_possible

    def network() -> nn.Module:
        return make_backbone(BackboneConfig("wrn-28-2"), 3)

    assert is_possible(network(), (3, 32, 32))
    assert not is_possible(network(), (3, 28, 28))  # rows of 7 pixels in the last stage: not in pairs
    dropping = network()
    dropping.blocks[0].dropout.p = 0.1
    assert not is_possible(dropping, (3, 32, 32))
    other_norm = network()
    other_norm.norm = nn.SyncBatchNorm(128)
    other_norm.blocks[0].norm1 = type("Mine", (nn.BatchNorm2d,), {})(16)
    assert not is_possible(other_norm, (3, 32, 32))


def test_a_pass_in_float32_and_one_with_a_gradient_of_the_images_are_the_networks_own():
    network, fused = WideResNet(1), torch.zeros(2, 64)
    network.training_pass = lambda network, x: fused
    x = torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert network(x) is fused
        assert network(x.clone().requires_grad_()) is not fused
        with torch.autocast("cpu", enabled=False):
            assert network(x) is not fused
        assert network.eval()(x) is not fused
    assert network.train()(x) is not fused


@pytest.mark.parametrize("widen", [2, pytest.param(8, id="wrn-28-8")])
class TestOnTheDevice:
    pytestmark = needs_cuda

    def test_as_near_to_float32_as_autocast(self, widen):
        from npmatch.backbones.fused.network import features

        torch.manual_seed(0)
        exact = WideResNet(widen, momentum=0.1).cuda().to(memory_format=torch.channels_last)
        ours, autocast = copy.deepcopy(exact), copy.deepcopy(exact)
        x = torch.randn(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
        d_features = torch.randn(64, exact.num_features, device="cuda")
        with torch.backends.cudnn.flags(allow_tf32=False):
            f_exact = exact(x)
            f_exact.backward(d_features)
        f_ours = features(ours, x)
        f_ours.backward(d_features)
        with torch.autocast("cuda", torch.bfloat16):
            f_autocast = autocast(x)
        f_autocast.float().backward(d_features)

        def distance(one, other):
            return float((one - other).norm() / other.norm())

        assert distance(f_ours, f_exact) <= 1.2 * distance(f_autocast, f_exact)
        mine, usual, right = ([p.grad for p in network.parameters()] for network in (ours, autocast, exact))
        for p, q, r in zip(mine, usual, right, strict=True):
            assert distance(p, r) <= 1.5 * distance(q, r) + 1e-3
        mine, usual, right = (torch.cat([p.flatten() for p in parts]) for parts in (mine, usual, right))
        assert distance(mine, right) <= 1.1 * distance(usual, right)
        for p, q in zip(ours.buffers(), exact.buffers(), strict=True):
            torch.testing.assert_close(p.float(), q.float(), rtol=2e-2, atol=1e-2)
