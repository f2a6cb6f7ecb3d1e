"""A model on disk: model.safetensors and config.json, enough to predict."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.algorithms import find_algorithm
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.heads import Bank, Model
from npmatch.training import save_tensors
from npmatch.types import Task

MODEL_CONFIG, MODEL_WEIGHTS = "config.json", "model.safetensors"  # a saved model's two files
FORMAT = 1  # of config.json
MOST_PIXELS = 10_000  # along a side


@dataclass(frozen=True)
class ModelSpec:
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
    def load(path: Path) -> ModelSpec:
        """Reads what `save` wrote."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise NPMatchError(f"{path}: cannot be read; is {path.parent} the folder of a finished run?") from error
        except (ValueError, RecursionError) as error:
            raise NPMatchError(f"{path}: not valid JSON") from error
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise NPMatchError(f"{path}: written by another version of npmatch; train again or use that version")
        try:
            tuples = {key: tuple(fields[key]) for key in ("class_names", "mean", "std")}
            spec = ModelSpec(**{**fields, **tuples})
            spec.check()
        except (KeyError, TypeError, ValueError) as error:
            raise NPMatchError(f"{path}: does not describe a model of this version ({error})") from error
        return spec

    def check(self) -> None:
        """A ValueError that names the first field that cannot be: the file may be anybody's."""
        sides = (self.channels, self.stored_side, self.side)
        good = {
            "algorithm": isinstance(self.algorithm, str),
            "algorithm_config": isinstance(self.algorithm_config, dict),
            "backbone_config": isinstance(self.backbone_config, dict)
            and isinstance(self.backbone_config.get("name"), str),
            "class_names": all(isinstance(name, str) for name in self.class_names),
            "channels, stored_side, side": all(type(n) is int and 0 < n <= MOST_PIXELS for n in sides),
            "mean": _one_per_channel(self.mean, self.channels),
            "std": _one_per_channel(self.std, self.channels) and min(self.std) > 0,
            "num_labeled": type(self.num_labeled) is int,
        }
        for field in (name for name, is_good in good.items() if not is_good):
            raise ValueError(field)


def _one_per_channel(values: tuple[float, ...], channels: int) -> bool:
    return len(values) in (1, channels) and all(isinstance(value, int | float) for value in values)


def save_model(folder: Path, model: Model, spec: ModelSpec) -> None:
    """model.safetensors and config.json: weights as they are now, and of each bank its mean alone."""
    condensed = deepcopy(model)
    for module in condensed.modules():
        for name, child in module.named_children():
            if isinstance(child, Bank):
                setattr(module, name, child.condensed())
    spec.save(folder / MODEL_CONFIG)
    save_tensors(folder / MODEL_WEIGHTS, condensed.state_dict())


def empty_model(spec: ModelSpec) -> Model:
    """The network that a spec describes, before its weights are read."""
    algorithm = find_algorithm(spec.algorithm)
    settings = {k: v for k, v in spec.algorithm_config.items() if k != "name"}
    backbone = make_backbone(
        dataclasses.replace(BackboneConfig(**spec.backbone_config), pretrained=False), spec.channels
    )
    task = Task(spec.class_names, spec.num_labeled, num_unlabeled=0)
    return algorithm.make_model(backbone, task, algorithm.Config(**settings))


def model_with(spec: ModelSpec, state: Mapping[str, Tensor]) -> Model:
    """The network that a spec describes, with these weights; a ValueError where they do not belong together."""
    if not _fits(spec, state):  # before memory is taken for what a stranger's file may call for
        raise ValueError("the weights are of another network")
    model = empty_model(spec)
    model.load_state_dict(dict(state))
    return model


def _fits(spec: ModelSpec, state: Mapping[str, Tensor]) -> bool:
    """Whether parameters have the shapes that the spec calls for, as far as that can be told without making them."""
    try:
        with torch.device("meta"):
            sketch = dict(empty_model(spec).named_parameters())
    except Exception:  # a network that cannot be sketched is made, and then compared
        return True
    return all(name in state and state[name].shape == p.shape for name, p in sketch.items())
