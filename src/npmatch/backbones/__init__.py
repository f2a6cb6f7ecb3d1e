"""Networks from images to pooled features: any module N C H W → N F with an attribute `num_features`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from npmatch.backbones.small import SmallCNN
from npmatch.backbones.wide_resnet import WideResNet
from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.types import Share, Size
from npmatch.user_code import import_name

__all__ = ["BUILT_IN", "BackboneConfig", "SmallCNN", "WideResNet", "make_backbone"]

BUILT_IN = ["wrn-28-2", "wrn-28-8", "wrn-37-2", "cnn"]


@dataclass(frozen=True)
class BackboneConfig:
    """Settings of the backbone."""

    name: str = "wrn-28-2"  # wrn-28-2, wrn-28-8, wrn-37-2, cnn, timm:NAME or package.module:Class
    pretrained: bool = False  # timm models only: start with pretrained weights
    width: Size | None = None  # cnn only: channels of the first layer
    stem_stride: Size = 1  # cnn only: stride of the first layer; 2 takes a quarter of the time
    norm_momentum: Share | None = None  # share of the new batch in batch norm's running statistics


def make_backbone(config: BackboneConfig, in_channels: int) -> nn.Module:
    """The network named in the configuration, for images with `in_channels` channels."""
    momentum: dict[str, Any] = {} if config.norm_momentum is None else {"momentum": config.norm_momentum}
    match config.name.split(":", 1):
        case ["wrn-28-2"]:
            return WideResNet(2, in_channels=in_channels, **momentum)
        case ["wrn-28-8"]:
            return WideResNet(8, in_channels=in_channels, **momentum)
        case ["wrn-37-2"]:
            # Four stages, of which the first has stride 2 too: made for images of 96×96.
            return WideResNet(2, stages=4, in_channels=in_channels, first_stride=2, **momentum)
        case ["cnn"]:
            return SmallCNN(config.width or 32, config.stem_stride, in_channels, **momentum)
        case ["timm", name]:
            return _timm_model(name, config, in_channels)
        case [_, _]:
            return _user_backbone(config.name, in_channels)
    raise NoSuchChoiceError("backbone", config.name, [*BUILT_IN, "timm:resnet50", "package.module:Class"])


def _timm_model(name: str, config: BackboneConfig, in_channels: int) -> nn.Module:
    import timm

    if not timm.is_model(name):
        raise NoSuchChoiceError("timm model", name, timm.list_models())
    try:
        network: nn.Module = timm.create_model(name, pretrained=config.pretrained, num_classes=0, in_chans=in_channels)
    except Exception as error:
        if not config.pretrained:
            raise
        raise NPMatchError(
            f"backbone.pretrained: the weights of timm's '{name}' could not be loaded ({type(error).__name__}); "
            "put them into the Hugging Face cache or set backbone.pretrained=false"
        ) from error
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
