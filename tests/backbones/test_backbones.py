"""Backbones: published parameter counts, pooled shapes, timm, a user's own network, errors."""

import pytest
import torch
from torch import nn

from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.errors import NPMatchError


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "millions"), [("wrn-28-2", 10, 1.47), ("wrn-28-8", 100, 23.4), ("wrn-37-2", 10, 5.9)]
)
def test_parameter_counts_with_their_classifiers(name, classes, millions):
    backbone = make_backbone(BackboneConfig(name), 3)
    total = parameters(backbone) + parameters(nn.Linear(int(backbone.num_features), classes))
    assert total / 1e6 == pytest.approx(millions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "channels", "side", "features"),
    [("wrn-28-2", 3, 32, 128), ("wrn-37-2", 3, 96, 256), ("cnn", 1, 8, 128), ("timm:resnet18", 3, 64, 512)],
)
def test_pooled_features(name, channels, side, features):
    backbone = make_backbone(BackboneConfig(name), channels).eval()
    out = backbone(torch.randn(2, channels, side, side))
    assert out.shape == (2, features)
    assert backbone.num_features == features


def test_the_small_networks_first_stride():
    seen = []
    backbone = make_backbone(BackboneConfig("cnn", width=8, stem_stride=2), 1)
    backbone.convs[0].register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    assert backbone(torch.randn(2, 1, 28, 28)).shape == (2, 32)
    assert seen == [(2, 8, 14, 14)]


def test_a_wide_resnet_has_the_norms_and_layers_of_the_fixmatch_family():
    backbone = make_backbone(BackboneConfig("wrn-28-2"), 3)
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.momentum, m.eps) for m in norms} == {(0.001, 1e-3)}
    assert len([m for m in backbone.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]) == 25


def test_norm_momentum_is_an_option():
    for name in ("wrn-28-2", "timm:resnet18"):
        backbone = make_backbone(BackboneConfig(name, norm_momentum=0.03), 3)
        assert {m.momentum for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)} == {0.03}


def test_every_trainable_parameter_gets_a_gradient():
    backbone = make_backbone(BackboneConfig("wrn-28-2"), 3)
    backbone(torch.randn(4, 3, 16, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.parameters())


def test_a_users_backbone(tmp_path, monkeypatch):
    (tmp_path / "my_network.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def __init__(self, channels):\n        super().__init__(); self.num_features = 7\n"
        "class Nameless(torch.nn.Module):\n    def __init__(self, channels): super().__init__()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert make_backbone(BackboneConfig("my_network:Net"), 1).num_features == 7
    with pytest.raises(NPMatchError, match="num_features"):
        make_backbone(BackboneConfig("my_network:Nameless"), 1)
    with pytest.raises(NPMatchError, match="no module named 'absent'"):
        make_backbone(BackboneConfig("absent:Net"), 1)


@pytest.mark.parametrize(("name", "near"), [("wrn-28-3", "wrn-28-"), ("timm:resnet5", "resnet")])
def test_unknown_names_suggest_the_nearest(name, near):
    with pytest.raises(NPMatchError, match=near):
        make_backbone(BackboneConfig(name), 3)


def test_the_stages_halve_the_image_and_the_network_for_96_pixels_from_the_first_on():
    for name, side, sides in (("wrn-28-2", 32, [32, 16, 8]), ("wrn-37-2", 96, [48, 24, 12, 6])):
        network, x, seen = make_backbone(BackboneConfig(name=name), 3).eval(), torch.zeros(1, 3, side, side), []
        x = network.stem(x)
        for number, block in enumerate(network.blocks):
            x = block(x)
            if number % 4 == 3:
                seen.append(x.shape[-1])
        assert seen == sides
