"""The contract of an algorithm: the views it needs, a loss, a prediction; all state in parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from npmatch.heads import LinearHead, Model, synchronise_norms
from npmatch.objectives.adjustment import LogitAdjustment
from npmatch.types import Batch, Prediction, Step, Task, Views

Update = Callable[[Tensor], None]  # backward, clipping, optimiser: one step down a loss
# Preset `fast`: what trains a network from scratch in tens of thousands of steps and not in a million. Those of the
# algorithm's own settings that it does not have are left out.
FAST: dict[str, Any] = {
    "algorithm.weak_norm": "shared",
    "training.optimizer": "muon",
    "training.filter_angle": 0.01,
    "training.learning_rate": 0.06,
    "training.schedule": "cosine-63-128",
    "training.clip": 1.0,
}


class Algorithm(nn.Module):
    """A model and the way it learns.

    A step has static shapes and never reads a value from the device (no `.item()`, no `if tensor`, no row selection
    by a mask), so that the whole of it can be captured as one graph. Labels of unlabelled images are not in a Batch.
    """

    views: ClassVar[Views] = Views()
    settings: ClassVar[dict[str, Any]] = {}  # dotted keys outside its own Config that it sets, over the recipe
    presets: ClassVar[dict[str, dict[str, Any]]] = {"fast": FAST}  # name of a preset → dotted keys and their values

    @dataclass(frozen=True)
    class Config:
        """The algorithm's own settings: plain names, with the paper's symbol in the comment."""

    def __init__(self, backbone: nn.Module, task: Task, config: Any = None) -> None:
        """`config` is an instance of this class's Config, by default Config()."""
        super().__init__()
        self.task = task
        self.config = config if config is not None else self.Config()
        self.model = self.make_model(backbone, task, self.config)
        if getattr(self.config, "weak_norm", None) == "shared":
            synchronise_norms(self.model.backbone, "algorithm.weak_norm", "joint")
        counts = task.labels_per_class or (1,) * task.num_classes
        self.adjust = LogitAdjustment(counts, getattr(self.config, "adjustment", 0.0))  # not all methods have it

    @classmethod
    def make_model(cls, backbone: nn.Module, task: Task, config: Any) -> Model:
        """The network that predicts; a saved model is rebuilt by this from its configuration."""
        return Model(backbone, LinearHead(int(backbone.num_features), task.num_classes))  # type: ignore[arg-type]

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """The paper's equations in the paper's order; `progress` is a 0-d tensor in [0, 1]."""
        raise NotImplementedError

    def train_step(self, batch: Batch, progress: Tensor, update: Update) -> Step:
        """One step of training; a method with several optimiser steps overrides this."""
        step = self.loss(batch, progress)
        update(step.loss)
        return step

    def trusted_images(self) -> tuple[Tensor, Tensor] | None:
        """Unlabelled images that predictions are made from: positions in the unlabelled set n, pseudo-labels n."""
        return None

    def predict(self, x: Tensor) -> Prediction:
        """The prediction for normalised images N C H W; evaluation and export use this method only."""
        prediction: Prediction = self.model(x)
        return prediction
