"""The contract of an algorithm: views it asks for, a loss, a prediction; all state in parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from npmatch.heads import LinearHead, Model
from npmatch.types import Batch, Prediction, Step, Task, Views

Update = Callable[[Tensor], None]  # backward, clipping, optimiser: one step down a loss


class Algorithm(nn.Module):
    """A model and the way it learns.

    A step has static shapes and never asks the device for a value (no `.item()`, no `if tensor`, no row selection
    by a mask), so that the whole of it can be captured as one graph. Labels of unlabelled images are not in a Batch.
    """

    views: ClassVar[Views] = Views()
    settings: ClassVar[dict[str, Any]] = {}  # dotted keys it sets outside its own Config, whatever the recipe says
    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # name → configuration keys it sets, dotted

    @dataclass(frozen=True)
    class Config:
        """The algorithm's own settings, plain words, with the paper's symbol in the comment."""

    def __init__(self, backbone: nn.Module, task: Task, config: Any = None) -> None:
        """`config` is this class's Config; its defaults where none is given."""
        super().__init__()
        self.task = task
        self.config = config if config is not None else self.Config()
        self.model = self.make_model(backbone, task, self.config)

    @classmethod
    def make_model(cls, backbone: nn.Module, task: Task, config: Any) -> Model:
        """The part that predicts, from its configuration alone: what a saved model is rebuilt by."""
        return Model(backbone, LinearHead(int(backbone.num_features), task.num_classes))  # type: ignore[arg-type]

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """The paper's equations in the paper's order; `progress` is a 0-d tensor in [0, 1]."""
        raise NotImplementedError

    def train_step(self, batch: Batch, progress: Tensor, update: Update) -> Step:
        """One step of training; a method with several optimiser steps overrides this."""
        step = self.loss(batch, progress)
        update(step.loss)
        return step

    def predict(self, x: Tensor) -> Prediction:
        """What the model says of normalised images N C H W; everything downstream uses this alone."""
        prediction: Prediction = self.model(x)
        return prediction
