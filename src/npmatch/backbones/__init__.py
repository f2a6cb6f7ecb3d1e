"""Networks from images to pooled features: any module N C H W → N F with an attribute `num_features`."""

from __future__ import annotations

from typing import Any

from torch import nn

from npmatch.backbones.config import BackboneConfig
from npmatch.backbones.frozen import FrozenTrunk
from npmatch.backbones.prepared import Prepared
from npmatch.backbones.small import SmallCNN
from npmatch.backbones.weights import check_timm_name, fixed_side, load_into, pretrained_timm
from npmatch.backbones.wide_resnet import WideResNet
from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.user_code import import_name

__all__ = ["BUILT_IN", "BackboneConfig", "SmallCNN", "WideResNet", "make_backbone"]

BUILT_IN = ["wrn-28-2", "wrn-28-8", "wrn-37-2", "cnn"]


def make_backbone(config: BackboneConfig, in_channels: int, load: bool = True) -> nn.Module:
    """The network named in the configuration, for images with `in_channels` channels.

    It has random weights, or pretrained ones if the configuration names such and `load` is true.
    """
    load = load and config.weights is not None
    network = _make_network(config, in_channels, load)
    if config.frozen:
        return FrozenTrunk(network, config.input_size, in_channels)
    if config.frozen_norms or config.input_size is not None:
        return Prepared(network, config.input_size, config.frozen_norms)
    return network


def _make_network(config: BackboneConfig, in_channels: int, load: bool) -> nn.Module:
    kind, _, name = config.name.partition(":")
    if kind == "timm" and name:
        return _timm_model(name, config, in_channels, load)
    network = _user_backbone(config.name, in_channels) if name else _built_in(config, in_channels)
    if load:
        load_into(network, config)
    return network


def _built_in(config: BackboneConfig, in_channels: int) -> nn.Module:
    momentum: dict[str, Any] = {} if config.norm_momentum is None else {"momentum": config.norm_momentum}
    match config.name:
        case "wrn-28-2":
            return WideResNet(2, in_channels=in_channels, **momentum)
        case "wrn-28-8":
            return WideResNet(8, in_channels=in_channels, **momentum)
        case "wrn-37-2":
            # Four stages, of which the first has stride 2 too: made for images of 96×96.
            return WideResNet(2, stages=4, in_channels=in_channels, first_stride=2, **momentum)
        case "cnn":
            return SmallCNN(config.width or 32, config.stem_stride, in_channels, **momentum)
    raise NoSuchChoiceError("backbone", config.name, [*BUILT_IN, "timm:resnet50", "package.module:Class"])


def _timm_model(name: str, config: BackboneConfig, in_channels: int, load: bool) -> nn.Module:
    import timm

    check_timm_name(name)
    options: dict[str, Any] = {"num_classes": 0, "in_chans": in_channels}
    if config.input_size is not None and fixed_side(name) is not None:
        options["img_size"] = config.input_size
    network: nn.Module = pretrained_timm(name, config, **options) if load else timm.create_model(name, **options)
    # Some timm networks keep a hidden layer in the head, so their pooled width is not `num_features`.
    width = getattr(network, "head_hidden_size", None) or network.num_features
    network.num_features = int(width)  # type: ignore[assignment, arg-type]
    if config.norm_momentum is not None:
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = config.norm_momentum
    return network


def _user_backbone(name: str, in_channels: int) -> nn.Module:
    network = import_name(name, "backbone")(in_channels)
    if not isinstance(getattr(network, "num_features", None), int):
        raise NPMatchError(f"backbone '{name}' has no integer attribute num_features (the size of its output)")
    assert isinstance(network, nn.Module)
    return network
