"""Settings of the backbone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npmatch.types import Share, Size


@dataclass(frozen=True)
class BackboneConfig:
    """Settings of the backbone."""

    name: str = "wrn-28-2"  # wrn-28-2, wrn-28-8, wrn-37-2, cnn, timm:NAME or package.module:Class
    pretrained: bool | Literal["auto"] = False  # learnt weights: true downloads them, auto takes what is installed
    weights: str | None = None  # a file of weights, safetensors or a state dict; None: those of `pretrained`
    sha256: str | None = None  # of the weights' file; found when the run starts
    input_size: Size | None = None  # side in pixels to which views are scaled on the device; None: their own
    frozen: bool = False  # the pretrained network stays as it is, and a small layer on top of it is trained
    cached_views: Size = 4  # for `frozen`: weak views of each image whose features are kept; twice as many strong ones
    frozen_norms: bool = False  # batch norm keeps the statistics of the pretrained weights
    width: Size | None = None  # cnn only: channels of the first layer
    stem_stride: Size = 1  # cnn only: stride of the first layer; 2 takes a quarter of the time
    norm_momentum: Share | None = None  # share of the new batch in batch norm's running statistics
