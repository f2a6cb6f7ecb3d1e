"""A backbone and a head: what is trained, saved, loaded and exported."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from npmatch.types import Prediction

WeakNorm = Literal["joint", "own", "running"]


class Head(Protocol):
    """What a model asks of its head."""

    def predict(self, features: Tensor) -> Prediction:
        """N F → what the model says."""
        ...


class Model(nn.Module):
    """Normalised images in, a Prediction out; algorithms train it through `features` and its head."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        """`backbone` maps images to pooled features N F and tells F as `num_features`."""
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.autocast: torch.dtype | None = None  # the backbone's arithmetic; heads stay in float32

    def features(self, x: Tensor) -> Tensor:
        """Pooled features of images: N C H W → N F, never in less than float32."""
        with torch.autocast(x.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            f: Tensor = self.backbone(x)
        return f.float() if f.dtype in (torch.bfloat16, torch.float16) else f

    def features_of_views(
        self, x: Tensor, weak: Tensor, strong: Tensor, weak_norm: WeakNorm
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Features of labelled, weak and strong views; `weak_norm` says which statistics normalise the weak ones.

        joint: all views in one pass, so in one batch-norm batch. own: the weak views in a pass of their own,
        without gradient. running: the same with the running statistics, as in evaluation.
        """
        if weak_norm == "joint":
            f = self.features(torch.cat([x, weak, strong]))
            f_x, f_weak, f_strong = torch.split(f, [len(x), len(weak), len(strong)])
            return f_x, f_weak, f_strong
        with torch.no_grad():
            self.backbone.train(self.training and weak_norm == "own")
            f_weak = self.features(weak)
            self.backbone.train(self.training)
        f_x, f_strong = torch.split(self.features(torch.cat([x, strong])), [len(x), len(strong)])
        return f_x, f_weak, f_strong

    def describe(self, x: Tensor) -> tuple[Prediction, Tensor]:
        """N C H W → what the model says, and the features N F it says it from."""
        f = self.features(x)
        return self.head.predict(f), f  # type: ignore[operator]

    def forward(self, x: Tensor) -> Prediction:
        """N C H W → what the model says."""
        prediction: Prediction = self.head.predict(self.features(x))  # type: ignore[operator]
        return prediction
