"""A frozen trunk and the layer on top: what is fixed, what is trained, and that activations stand for their images."""

import pytest
import timm
import torch
from torch import nn

from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.backbones.frozen import FrozenTrunk, fast_activations


@pytest.fixture
def frozen():
    torch.manual_seed(0)
    return make_backbone(BackboneConfig("timm:tf_efficientnet_lite0", frozen=True, input_size=64), 3, load=False)


def test_activations_give_the_features_of_their_images(frozen):
    images = torch.randn(3, 3, 32, 32)
    frozen.eval()
    with torch.no_grad():
        activations = frozen.activations(images)
        frozen.standardise(activations)
        torch.testing.assert_close(frozen(activations[:, :, None, None]), frozen(images))


def test_the_trunk_is_fixed_and_the_top_is_trained(frozen):
    frozen.train()
    before = {name: value.clone() for name, value in frozen.trunk.state_dict().items()}
    frozen(torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(p.grad is None for p in frozen.trunk.parameters())
    assert all(p.grad is not None for p in frozen.top.parameters())
    after = frozen.trunk.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())  # batch norm's statistics too
    assert frozen.top.training
    assert not any(module.training for module in frozen.trunk.modules())


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_the_last_activations_are_the_networks_own_features(name):
    options = {"img_size": 64} if name.startswith("vit") else {}
    network = timm.create_model(name, num_classes=0, **options).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        pooled = network(images)
        activations = FrozenTrunk(network, 64, 3).activations(images)
    assert activations.shape[1] > pooled.shape[1]
    torch.testing.assert_close(activations[:, -pooled.shape[1] :], pooled)


def test_of_another_network_the_features_are_all_that_is_taken():
    network = make_backbone(BackboneConfig("cnn", width=4), 3)
    frozen = make_backbone(BackboneConfig("cnn", width=4, frozen=True), 3)
    assert isinstance(frozen, FrozenTrunk)
    assert frozen.parts == [network.num_features]


def test_the_fast_activations_are_the_same_for_any_batch(frozen):
    with torch.no_grad():
        for module in frozen.trunk.modules():  # batch norms that do something
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 2)
        images = torch.randn(7, 3, 32, 32)
        fast = fast_activations(frozen, images[:4])
        assert fast != frozen.activations  # otherwise the network could not be traced
        torch.testing.assert_close(fast(images), frozen.activations(images), atol=1e-4, rtol=1e-3)


class Forgetful(nn.Module):
    """A network whose trace differs from it, because it is another one at each call."""

    num_features = 4

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x.mean((2, 3))[:, [0, 1, 2, 0]] * self.calls


def test_a_network_that_differs_from_its_trace_is_not_traced():
    trunk = FrozenTrunk(Forgetful(), None, 3)
    assert fast_activations(trunk, torch.rand(4, 3, 8, 8)) == trunk.activations
