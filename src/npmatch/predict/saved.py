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
from npmatch.backbones import make_backbone
from npmatch.config.tree import Config, make_config
from npmatch.decide import Calibration
from npmatch.errors import NPMatchError
from npmatch.files import read_regular, write_atomically
from npmatch.heads import Bank, Model, condensed_banks
from npmatch.training.checkpoint import checksum_of, save_tensors
from npmatch.types import Task

MODEL_CONFIG, MODEL_WEIGHTS = "config.json", "model.safetensors"
FORMAT = 1  # of config.json
MAX_SIDE = 10_000  # pixels
# Bounds of the normalisation, far beyond any pixels in [0, 1]: the network's input stays finite in float32.
MAX_MEAN, MIN_STD, MAX_STD = 1e6, 1e-6, 1e6


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
            fields = json.loads(read_regular(path).decode())
        except OSError as error:
            raise NPMatchError(f"{path}: cannot be read; is {path.parent} the folder of a finished run?") from error
        except (ValueError, RecursionError) as error:
            raise NPMatchError(f"{path}: not valid JSON") from error
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise NPMatchError(f"{path}: written by another version of npmatch; train again or use that version")
        try:
            lists = {key: fields[key] for key in ("class_names", "mean", "std")}
            for key, values in lists.items():
                if not isinstance(values, list):  # the letters of a word would make a tuple too
                    raise ValueError(key)
            spec = ModelSpec(**{**fields, **{key: tuple(values) for key, values in lists.items()}})
            spec.check()
        except (KeyError, TypeError, ValueError) as error:
            raise NPMatchError(f"{path}: does not describe a model of this version ({error})") from error
        return spec

    def check(self) -> None:
        """Raises a ValueError with the name of the first invalid field; the file may come from anyone."""
        sizes = (self.channels, self.stored_side, self.side)
        names = self.class_names
        is_valid = {
            "algorithm": isinstance(self.algorithm, str),
            "algorithm_config": isinstance(self.algorithm_config, dict),
            "backbone_config": isinstance(self.backbone_config, dict)
            and isinstance(self.backbone_config.get("name"), str),
            "class_names": all(isinstance(name, str) for name in names),
            "class_names: two are equal": len(set(names)) == len(names),
            "channels, stored_side, side": all(type(n) is int and 0 < n <= MAX_SIDE for n in sizes)
            and self.side <= self.stored_side,  # no crop is larger than the picture
            "mean": _one_per_channel(self.mean, self.channels, -MAX_MEAN, MAX_MEAN),
            "std": _one_per_channel(self.std, self.channels, MIN_STD, MAX_STD),
            "num_labeled": type(self.num_labeled) is int,
        }
        for field, valid in is_valid.items():
            if not valid:
                raise ValueError(field)

    def settings(self) -> Config:
        """The settings of the algorithm and the backbone, converted to their types and checked against their bounds."""
        algorithm = {f"algorithm.{key}": value for key, value in self.algorithm_config.items()}
        backbone = {f"backbone.{key}": value for key, value in self.backbone_config.items()}
        return make_config({}, {**algorithm, **backbone, "algorithm.name": self.algorithm})


def _one_per_channel(values: tuple[float, ...], channels: int, lowest: float, highest: float) -> bool:
    """Whether there is a number within the bounds for each channel, or one for all; NaN is within no bounds."""
    are_numbers = all(type(value) in (int, float) for value in values)
    return len(values) in (1, channels) and are_numbers and all(lowest <= value <= highest for value in values)


def save_model(folder: Path, model: Model, spec: ModelSpec) -> None:
    """Writes model.safetensors and config.json; a bank is saved as its mean, which is all that prediction needs."""
    condensed = deepcopy(model)
    for module in condensed.modules():
        for name, child in module.named_children():
            if isinstance(child, Bank):
                setattr(module, name, child.condensed())
    Calibration.remove(folder)  # of the model before: whenever this process ends, no model has another's thresholds
    spec.save(folder / MODEL_CONFIG)
    save_tensors(folder / MODEL_WEIGHTS, condensed.state_dict())


def save_calibration(folder: Path, calibration: Calibration) -> None:
    """Writes a calibration beside the model it was fitted for, and ties it to that model's weights."""
    calibration.save(folder, checksum_of(folder / MODEL_WEIGHTS))


def load_calibration(folder: Path, num_classes: int | None = None) -> Calibration | None:
    """The calibration in a folder, or None if there is none; one that was fitted for another model is an error."""
    weights = folder / MODEL_WEIGHTS
    return Calibration.load(folder, num_classes, weights if weights.exists() else None)


def empty_model(spec: ModelSpec) -> Model:
    """The network that a specification describes, with random weights and the short banks of a saved model."""
    settings = spec.settings()
    backbone = make_backbone(settings.backbone, spec.channels, load=False)
    task = Task(spec.class_names, spec.num_labeled, num_unlabeled=0)
    with condensed_banks():
        return find_algorithm(spec.algorithm).make_model(backbone, task, settings.algorithm)


def model_with(spec: ModelSpec, state: Mapping[str, Tensor]) -> Model:
    """The network that a specification describes, with the given weights; a ValueError if they do not fit it."""
    if not _shapes_fit(spec, state):  # checked before a stranger's file can make us allocate memory
        raise ValueError("the weights are of another network")
    for name, tensor in state.items():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise ValueError(f"{name} holds NaN: the model diverged in training, or the file was changed")
    model = empty_model(spec)
    model.load_state_dict(dict(state))
    return model


def _shapes_fit(spec: ModelSpec, state: Mapping[str, Tensor]) -> bool:
    """Whether the weights have the shapes of the network's, found on the meta device, which needs no memory."""
    try:
        with torch.device("meta"):
            expected = empty_model(spec).state_dict()
    except NPMatchError:  # settings out of bounds
        raise
    except Exception:  # not every network can be built there; load_state_dict then compares the shapes
        return True
    return all(name in state and _fits(state[name].shape, tensor.shape) for name, tensor in expected.items())


def _fits(shape: torch.Size, expected: torch.Size) -> bool:
    """Whether a tensor has the expected shape; a size of 0, that of an empty context, stands for any."""
    return len(shape) == len(expected) and all(e in (0, n) for n, e in zip(shape, expected, strict=True))
