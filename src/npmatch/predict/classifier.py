"""A trained model in use: load it, predict images, decide, save it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from npmatch.backbones.weights import licence
from npmatch.data import decode_image, to_tensor
from npmatch.data.loading import check_batch_size
from npmatch.decide import Calibration, Decider, Decisions, Wishes
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.heads import Model
from npmatch.predict.batches import KINDS_OF_IMAGES, as_pixels, describe_batch, predict_batch
from npmatch.predict.card import ModelFacts
from npmatch.predict.hub import CARD, Pretrained, read_card
from npmatch.predict.saved import (
    MODEL_CONFIG,
    MODEL_WEIGHTS,
    ModelSpec,
    load_calibration,
    model_with,
    save_calibration,
    save_model,
)
from npmatch.training import load_tensors
from npmatch.types import Prediction
from npmatch.user_code import refuse_code, trusting
from npmatch.version import __version__


class Classifier(Pretrained):
    """A trained model: images in, labels with uncertainty out."""

    folder: Path | None = None  # the folder it was loaded from
    run_facts: Callable[[], dict[str, Any]] | None = None  # facts about its run for the model card, if it has a run

    def __init__(
        self, model: Model, spec: ModelSpec, device: torch.device, calibration: Calibration | None = None
    ) -> None:
        """Takes a model in memory; `npmatch.load(RUN)` loads one from a run."""
        self.model = model.to(device).eval()
        self.model.freeze()
        self.spec = spec
        self.device = device
        self.calibration = calibration

    @property
    def class_names(self) -> tuple[str, ...]:
        """K names, in the order of the probabilities."""
        return self.spec.class_names

    @cached_property
    def estimates_outliers(self) -> bool:
        """Whether predictions have `outlier`, the probability of being of no known class."""
        blank = torch.zeros(1, self.spec.channels, self.spec.stored_side, self.spec.stored_side, dtype=torch.uint8)
        return self.predict(blank).outlier is not None

    def predict(self, images: Any, batch_size: int = 256) -> Prediction:
        """Predicts files, PIL images, or an array N H W [C] or N C H W (uint8, or floats in [0, 1]).

        The probabilities are those before temperature scaling; `decide` or `calibration.apply(prediction)` scales them.
        """
        batches = self._batches(images, batch_size)
        parts = [predict_batch(self.model, batch, self.spec, self.device) for batch in batches]
        if not parts:
            return Prediction(torch.zeros(0, len(self.class_names)), torch.zeros(0))
        return Prediction.cat(parts)

    def decide(self, images: Any, wishes: Wishes | None = None, batch_size: int = 256, **changes: Any) -> Decisions:
        """Calibrated predictions and decisions on them, as in decide(images, abstain=0.05, ood=True, coverage=0.9).

        Args:
            images: the images, in any form that `predict` takes.
            wishes: the decisions to make, as one object; `changes` override it.
            batch_size: number of images that are processed at once.
            **changes: `abstain`, the highest error rate among predictions that are not withheld, and `confidence`, the
                probability with which that bound must hold; `ood`, whether to score how unlike the training images an
                image is, and `ood_quantile` of the training images' scores above which it is flagged; `coverage`, the
                probability with which a prediction set contains the true class; `calibrate=False` for probabilities
                without temperature scaling.
        """
        decider = Decider(self.calibration, dataclasses.replace(wishes or Wishes(), **changes))
        parts = [decider(*self.describe(batch)) for batch in self._batches(images, batch_size)]
        if not parts:
            raise NPMatchError("nothing to decide on: no images were given")
        return Decisions.cat(parts)

    def describe(self, images: Tensor) -> tuple[Prediction, Tensor]:
        """The prediction of uint8 images N C H W, and their features N F."""
        return describe_batch(self.model, images, self.spec, self.device)

    def _batches(self, images: Any, size: int) -> Iterable[Tensor]:
        """Batches of at most `size` images, uint8 N C H W."""
        check_batch_size(size)
        if isinstance(images, Tensor | np.ndarray):
            yield from torch.split(as_pixels(images, self.spec), size)
            return
        if isinstance(images, str | Path | Image.Image):
            images = [images]
        if not isinstance(images, Iterable) or isinstance(images, bytes | Mapping):
            raise NPMatchError(f"images must be {KINDS_OF_IMAGES}, not {type(images).__name__}")
        images = list(images)
        for start in range(0, len(images), size):
            yield torch.stack([self.read(image) for image in images[start : start + size]])

    def read(self, image: str | Path | Image.Image | Tensor | np.ndarray[Any, Any]) -> Tensor:
        """One image, in any form that `predict` takes, as uint8 C H W of the model's size."""
        if isinstance(image, Tensor | np.ndarray):
            return as_pixels(image[None], self.spec)[0]
        if isinstance(image, Image.Image):
            return to_tensor(image, self.spec.stored_side, self.spec.channels)
        if not isinstance(image, str | Path):
            raise NPMatchError(f"images must be {KINDS_OF_IMAGES}; one of them is {type(image).__name__}")
        return decode_image(Path(image), self.spec.stored_side, self.spec.channels)

    def save_files(self, folder: Path) -> None:
        """Writes model.safetensors and config.json, and the calibration if there is one."""
        save_model(folder, self.model, self.spec)
        if self.calibration is not None:
            save_calibration(folder, self.calibration)

    def facts(self) -> ModelFacts:
        """The facts about the model, and about its run if it was loaded from one."""
        spec, backbone = self.spec, self.spec.settings().backbone
        return ModelFacts(
            algorithm=spec.algorithm,
            backbone=str(spec.backbone_config.get("name")),
            class_names=spec.class_names,
            channels=spec.channels,
            side=spec.stored_side,
            num_labeled=spec.num_labeled,
            temperature=None if self.calibration is None else self.calibration.temperature,
            calibration_labels=0 if self.calibration is None else self.calibration.n,
            version=__version__,
            weights=backbone.weights,
            licence=licence(backbone),
            **({} if self.run_facts is None else self.run_facts()),
        )

    def kept_card(self) -> str | None:
        """The model card in the folder it was loaded from, unless that folder is a run."""
        if self.folder is None or self.run_facts is not None or not (self.folder / CARD).is_file():
            return None
        return read_card(self.folder)

    @classmethod
    def load_files(cls, folder: Path, device: str | None) -> Self:
        """The model that `save_files` wrote."""
        loaded = load_model(folder, device)
        assert isinstance(loaded, cls)
        return loaded


def load_model(
    folder: str | Path, device: str | None = None, trust_code: bool = False, calibrated: bool = True
) -> Classifier:
    """The model saved in a folder, with its calibration if there is one and `calibrated` is true."""
    folder = Path(folder)
    path = folder / MODEL_CONFIG
    spec = ModelSpec.load(path)
    with trusting(trust_code):
        refuse_code([spec.algorithm, spec.backbone_config.get("name")], path)
    state, _ = load_tensors(folder / MODEL_WEIGHTS)
    try:
        model = model_with(spec, state)
    except NPMatchError as error:
        raise NPMatchError(f"{path}: {error}") from error
    except (ValueError, RuntimeError) as error:
        what = str(error).splitlines()[0]
        raise NPMatchError(f"{folder / MODEL_WEIGHTS}: does not fit {path} ({what})") from error
    except Exception as error:  # networks fail in many ways to be built from settings that do not suit each other
        raise NPMatchError(f"{path}: its network cannot be built ({type(error).__name__}: {error})") from error
    classifier = Classifier(model, spec, choose_device(device))
    classifier.folder = folder
    if calibrated:
        classifier.calibration = load_calibration(folder, len(classifier.class_names))
    return classifier
