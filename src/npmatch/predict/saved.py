"""A trained model on disk: model.safetensors holds the weights, config.json all else that prediction needs."""

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

MODEL_CONFIG, MODEL_WEIGHTS = "config.json", "model.safetensors"
FORMAT = 1  # of config.json
MAX_SIDE = 10_000  # pixels


@dataclass(frozen=True)
class ModelSpec:
    """The content of config.json: how to build the network, and how to prepare its input."""

    algorithm: str
    algorithm_config: dict[str, Any]
    backbone_config: dict[str, Any]
    class_names: tuple[str, ...]
    channels: int
    stored_side: int  # pixels: images are scaled to this size
    side: int  # pixels: the network sees the centre crop of this size
    mean: tuple[float, ...]  # of pixels in [0, 1], one per channel
    std: tuple[float, ...]
    num_labeled: int

    def save(self, path: Path) -> None:
        """Writes JSON without dates or paths, so that equal runs give equal files."""
        write_atomically(path, json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=2).encode())

    @staticmethod
    def load(path: Path) -> ModelSpec:
        """The specification in a file that `save` wrote; an invalid file is an error."""
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
        """Raises a ValueError with the name of the first invalid field; the file may come from anyone."""
        sizes = (self.channels, self.stored_side, self.side)
        is_valid = {
            "algorithm": isinstance(self.algorithm, str),
            "algorithm_config": isinstance(self.algorithm_config, dict),
            "backbone_config": isinstance(self.backbone_config, dict)
            and isinstance(self.backbone_config.get("name"), str),
            "class_names": all(isinstance(name, str) for name in self.class_names),
            "channels, stored_side, side": all(type(n) is int and 0 < n <= MAX_SIDE for n in sizes)
            and self.side <= self.stored_side,  # no crop is larger than the picture
            "mean": _one_per_channel(self.mean, self.channels),
            "std": _one_per_channel(self.std, self.channels) and min(self.std) > 0,
            "num_labeled": type(self.num_labeled) is int,
        }
        for field, valid in is_valid.items():
            if not valid:
                raise ValueError(field)


def _one_per_channel(values: tuple[float, ...], channels: int) -> bool:
    return len(values) in (1, channels) and all(isinstance(value, int | float) for value in values)


def save_model(folder: Path, model: Model, spec: ModelSpec) -> None:
    """Writes model.safetensors and config.json; a bank is saved as its mean, which is all that prediction needs."""
    condensed = deepcopy(model)
    for module in condensed.modules():
        for name, child in module.named_children():
            if isinstance(child, Bank):
                setattr(module, name, child.condensed())
    spec.save(folder / MODEL_CONFIG)
    save_tensors(folder / MODEL_WEIGHTS, condensed.state_dict())


def empty_model(spec: ModelSpec) -> Model:
    """The network that a specification describes, with random weights."""
    algorithm = find_algorithm(spec.algorithm)
    settings = {k: v for k, v in spec.algorithm_config.items() if k != "name"}
    backbone = make_backbone(BackboneConfig(**spec.backbone_config), spec.channels, load=False)
    task = Task(spec.class_names, spec.num_labeled, num_unlabeled=0)
    return algorithm.make_model(backbone, task, algorithm.Config(**settings))


def model_with(spec: ModelSpec, state: Mapping[str, Tensor]) -> Model:
    """The network that a specification describes, with the given weights; a ValueError if they do not fit it."""
    if not _shapes_fit(spec, state):  # checked before a stranger's file can make us allocate memory
        raise ValueError("the weights are of another network")
    model = empty_model(spec)
    model.load_state_dict(dict(state))
    return model


def _shapes_fit(spec: ModelSpec, state: Mapping[str, Tensor]) -> bool:
    """Whether the weights have the shapes of the network's parameters, found on the meta device without memory."""
    try:
        with torch.device("meta"):
            parameters = dict(empty_model(spec).named_parameters())
    except Exception:  # not every network can be built there; load_state_dict then compares the shapes
        return True
    return all(name in state and state[name].shape == p.shape for name, p in parameters.items())
