"""Floating-point operations of a training step, from which follows the least time that it could take on a device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from npmatch.backbones import make_backbone
from npmatch.config.tree import Config


def step_flops(config: Config, image_shape: tuple[int, int, int], unlabeled: int) -> int | None:
    """Floating-point operations of the backbone in one step of the FixMatch family; a multiply-add counts as two.

    It is None for other algorithms, which make other passes. `unlabeled` is the number of unlabelled images in a step.
    Labelled, weak and strong views pass forwards and backwards; where the weak ones have a pass of their own,
    or get no gradient (weak_norm=own, running, shared), these pass forwards alone.
    """
    channels, height, width = image_shape
    height, width = (config.augment.size or height, config.augment.size or width)
    weak_norm = getattr(config.algorithm, "weak_norm", None)  # a choice that this family has
    if weak_norm is None:
        return None
    joint = weak_norm == "joint"
    with torch.device("meta"):  # shapes alone: nothing is computed
        backbone = make_backbone(config.backbone, channels)
        weak = torch.empty(unlabeled, channels, height, width)
        learnt = torch.empty(config.training.batch + (2 if joint else 1) * unlabeled, channels, height, width)
    counter = FlopCounterMode(display=False)
    with counter:
        if not joint:
            with torch.no_grad():
                backbone(weak)
        features: Tensor = backbone(learnt)
        features.sum().backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())
