"""Networks on blocks of images: the same features, and all images at once where blocks would be wrong."""

import pytest
import torch
from torch import nn

from benchmarks.blocks import NETWORKS, bench_blocks
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.backbones.blocks import FEWEST, block_size, in_blocks


class Counting(nn.Module):
    """A network that notes how many images it sees at a time."""

    num_features = 3

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(len(x))
        return x.mean((2, 3))


def test_blocks_have_as_many_pixels_whatever_the_images_size():
    assert [block_size(side) for side in (16, 32, 64)] == [256, 64, 16]
    assert block_size(1000) == FEWEST


@pytest.mark.parametrize(("side", "expected"), [(None, [16, 16, 8]), (128, [FEWEST] * 5), (32, [40])])
def test_a_network_sees_a_block_at_a_time(side, expected):
    network, x = Counting(), torch.randn(40, 3, 64, 64)
    with torch.no_grad():
        features = in_blocks(network, x, side)
    assert network.seen == expected
    torch.testing.assert_close(features, x.mean((2, 3)))


def test_no_image_at_all_has_features_too():
    with torch.no_grad():
        assert in_blocks(Counting(), torch.zeros(0, 3, 8, 8)).shape == (0, 3)


def test_with_a_gradient_all_images_are_taken_at_once():
    network = Counting()
    in_blocks(network, torch.randn(40, 3, 64, 64))
    assert network.seen == [40]


@pytest.mark.parametrize("name", ["cnn", "timm:tf_efficientnet_lite0"])
def test_a_backbone_predicts_the_same_in_blocks(name):
    torch.manual_seed(0)
    network = make_backbone(BackboneConfig(name, width=4, input_size=64), 3, load=False).eval()
    x = torch.randn(20, 3, 64, 64)
    whole = network(x)  # with a gradient, and so at once
    with torch.no_grad():
        torch.testing.assert_close(network(x), whole.detach(), atol=1e-4, rtol=1e-3)


def test_a_row_for_every_network_with_its_ratio():
    result = bench_blocks(images=9, rounds=1)
    assert [row["block"] for row in result.rows] == [block_size(side) for _, side in NETWORKS]
    assert list(result.ratios.values()) == [pytest.approx(row["blocks"] / row["all"]) for row in result.rows]
