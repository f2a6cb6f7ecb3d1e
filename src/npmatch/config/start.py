"""The pretrained network that training on a user's own images starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from npmatch.backbones.weights import fixed_side, local_weights
from npmatch.config.facts import DataFacts

PRETRAINED_FROM = 32  # pixels: smaller images are not photographs, and too coarse for features learnt from those
# timm networks in order of preference: the first one whose weights are on this machine is used. Of the EfficientNets
# one is always installed, and the settings below were measured with it; the order of the others is the literature's.
LITE = tuple(f"tf_efficientnet_lite{size}.in1k" for size in (0, 1, 2))
OTHERS = ("resnet50.a1_in1k", "resnet34.a1_in1k", "resnet18.a1_in1k", "resnet18.tv_in1k")
# One entry for the CPU (False) and one for CUDA (True).
PRETRAINED = {
    False: (*LITE, *reversed(OTHERS)),
    True: ("vit_small_patch14_dinov2.lvd142m", *reversed(LITE), *OTHERS),
}


class Start(NamedTuple):
    """A pretrained network to start from."""

    network: str  # its key, backbone.name
    reason: str
    is_frozen: bool = False  # whether its weights stay as they are

    @property
    def is_transformer(self) -> bool:
        """Whether it is a transformer, which has no batch norm and wants AdamW."""
        kind, _, network = self.network.partition(":")
        return kind == "timm" and fixed_side(network) is not None


def find_start(facts: DataFacts, given: Mapping[str, Any], on_cuda: bool) -> Start | None:
    """The pretrained network that training starts from, or None; nothing is downloaded here.

    A network that was given is started from weights that were given, asked for, or are on this machine.
    """
    asked = str(given.get("backbone.pretrained", "auto")).lower()
    if "backbone.name" in given:
        name = str(given["backbone.name"])
        kind, _, network = name.partition(":")
        if given.get("backbone.weights") is not None or (kind == "timm" and is_true(asked)):
            return Start(name, "its weights were asked for")
        has_weights = asked == "auto" and kind == "timm" and local_weights(network) is not None
        return Start(name, "its weights are on this machine") if has_weights else None
    is_small = (given_number(given, "data.image_size") or facts.side or 0) < PRETRAINED_FROM
    if asked in ("false", "0", "no", "off") or (asked == "auto" and is_small):
        return None
    better: list[str] = []
    for network in PRETRAINED[on_cuda]:
        weights = local_weights(network)
        if weights is not None:
            kind, _, place = weights.origin.partition(":")
            here = f"the package {place} is installed" if kind == "package" else f"{place} is in the cache"
            advice = (
                f"; better, but a download: backbone.name=timm:{better[0]} backbone.pretrained=true" if better else ""
            )
            return Start(f"timm:{network}", f"learnt features; {here}{advice}")
        better.append(network)
    return Start(f"timm:{LITE[0]}", "learnt features") if is_true(asked) else None


def is_true(value: object) -> bool:
    """Whether a setting that may be text is true."""
    return str(value).lower() in ("true", "1", "yes", "on")


def given_number(given: Mapping[str, Any], key: str) -> int | None:
    """A setting that is a whole number, also as text; None if it is anything else."""
    text = str(given.get(key, ""))
    return int(text) if text.isdecimal() else None
