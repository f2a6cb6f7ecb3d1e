"""A model on disk: model.safetensors and config.json, enough to predict."""

from __future__ import annotations

import dataclasses
import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npmatch.algorithms import find_algorithm
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.heads import Bank, Model
from npmatch.training import save_tensors, write_atomically
from npmatch.types import NPMatchError, Task

FORMAT = 1  # of config.json


@dataclass(frozen=True)
class ModelCard:
    """config.json: all that is needed beside model.safetensors to predict."""

    algorithm: str
    algorithm_config: dict[str, Any]
    backbone_config: dict[str, Any]
    class_names: tuple[str, ...]
    channels: int
    stored_side: int  # images are brought to this size
    side: int  # the network sees the middle of them
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_labeled: int

    def save(self, path: Path) -> None:
        """Written as JSON without time or place, so that equal runs give equal files."""
        write_atomically(path, json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=2).encode())

    @staticmethod
    def load(path: Path) -> ModelCard:
        """Reads what `save` wrote."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise NPMatchError(f"{path}: cannot be read; is {path.parent} the folder of a finished run?") from error
        except ValueError as error:
            raise NPMatchError(f"{path}: not valid JSON") from error
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise NPMatchError(f"{path}: written by another version of npmatch; train again or use that version")
        try:
            tuples = {key: tuple(fields[key]) for key in ("class_names", "mean", "std")}
            return ModelCard(**{**fields, **tuples})
        except (KeyError, TypeError) as error:
            raise NPMatchError(f"{path}: does not describe a model of this version ({error})") from error


def save_model(folder: Path, model: Model, card: ModelCard) -> None:
    """model.safetensors and config.json: weights as they are now, and of each bank its mean alone."""
    condensed = deepcopy(model)
    for module in condensed.modules():
        for name, child in module.named_children():
            if isinstance(child, Bank):
                setattr(module, name, child.condensed())
    card.save(folder / "config.json")
    save_tensors(folder / "model.safetensors", condensed.state_dict())


def empty_model(card: ModelCard) -> Model:
    """The network that a card describes, before its weights are read."""
    algorithm = find_algorithm(card.algorithm)
    settings = {k: v for k, v in card.algorithm_config.items() if k != "name"}
    backbone = make_backbone(
        dataclasses.replace(BackboneConfig(**card.backbone_config), pretrained=False), card.channels
    )
    task = Task(card.class_names, card.num_labeled, num_unlabeled=0)
    return algorithm.make_model(backbone, task, algorithm.Config(**settings))
