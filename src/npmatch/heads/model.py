"""A backbone and a head: the network that is trained, saved, loaded and exported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from npmatch.backbones.blocks import in_blocks
from npmatch.distributed.collective import all_gather, all_gather_parts
from npmatch.heads.sync_norm import learning_from_first
from npmatch.types import Prediction

WeakNorm = Literal["joint", "shared", "own", "running"]


class Model(nn.Module):
    """Maps normalised images to a Prediction; algorithms train it through `features` and its head."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        """`backbone` maps images to pooled features N F, F = `backbone.num_features`; `head.predict` takes them."""
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.autocast: torch.dtype | None = None  # dtype of the backbone's arithmetic; heads compute in float32

    def features(self, x: Tensor) -> Tensor:
        """Pooled features of images: N C H W → N F, in float32 or float64.

        In training on several ranks, `x` is this rank's share of the batch, and the features are of the whole batch.
        """
        return all_gather(self._backbone_features(x)) if self.training else self._backbone_features(x)

    def features_together(self, *views: Tensor) -> tuple[Tensor, ...]:
        """Features of several sets of images as `features` gives them, in one pass and so in one batch-norm batch."""
        return all_gather_parts(self._backbone_features(torch.cat(views)), [len(view) for view in views])

    def _backbone_features(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            # A backbone that enlarges its images makes smaller blocks of these blocks.
            f: Tensor = self.backbone(x) if self.backbone.training else in_blocks(self.backbone, x)
        return f.float() if f.dtype in (torch.bfloat16, torch.float16) else f

    def features_of_views(
        self, x: Tensor, weak: Tensor, strong: Tensor, weak_norm: WeakNorm, *others: Tensor
    ) -> tuple[Tensor, ...]:
        """Features of labelled, weak and strong views; `weak_norm` says which statistics normalise the weak ones.

        joint: all views in one pass, so in one batch-norm batch. shared: the same, but without gradient for the weak
        views; the backbone's norms must be SyncNorms. own: the weak views in a pass of their own, without gradient.
        running: the same with the running statistics, as in evaluation. `others` are further views, such as strong
        views of labelled images, and are in one pass with `x` and `strong`.
        """
        if weak_norm == "joint":
            return self.features_together(x, weak, strong, *others)
        if weak_norm == "shared":
            views = (x, strong, *others)
            with learning_from_first(self.backbone, sum(len(view) for view in views)):
                f_x, f_strong, *f_others, f_weak = self.features_together(*views, weak)
            return f_x, f_weak.detach(), f_strong, *f_others
        with torch.no_grad():
            self.backbone.train(self.training and weak_norm == "own")
            f_weak = self.features(weak)
            self.backbone.train(self.training)
        f_x, *f_others = self.features_together(x, strong, *others)
        return f_x, f_weak, *f_others

    def describe(self, x: Tensor) -> tuple[Prediction, Tensor]:
        """N C H W → the prediction, and the features N F that it is made from."""
        f = self.features(x)
        return self.head.predict(f), f  # type: ignore[operator]

    def freeze(self) -> None:
        """For prediction only: lets the head compute once what does not depend on the image, if it can."""
        if hasattr(self.head, "freeze"):
            self.head.freeze()  # type: ignore[operator]

    def forward(self, x: Tensor) -> Prediction:
        """N C H W → the prediction."""
        prediction: Prediction = self.head.predict(self.features(x))  # type: ignore[operator]
        return prediction


def backbones_in(network: nn.Module) -> Iterator[nn.Module]:
    """The backbones in a network: on several ranks they see a share of the batch, all other modules the whole."""
    return (module.backbone for module in network.modules() if isinstance(module, Model))
