"""What people do with a trained model: load it, predict images, write the answers down."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from npmatch.data import decode_image, to_tensor
from npmatch.decide import Calibration, Decider, Decisions, Wishes
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.heads import Model
from npmatch.predict.batches import KINDS_OF_IMAGES, as_pixels, describe_batch, predict_batch
from npmatch.predict.card import ModelFacts
from npmatch.predict.hub import CARD, Pretrained
from npmatch.predict.saved import MODEL_CONFIG, MODEL_WEIGHTS, ModelSpec, model_with, save_model
from npmatch.training import load_tensors
from npmatch.types import Prediction
from npmatch.user_code import refuse_code, trusting
from npmatch.version import __version__


class Classifier(Pretrained):
    """A trained model: images in, labels with uncertainty out."""

    folder: Path | None = None  # where it was loaded from
    run_facts: Callable[[], dict[str, Any]] | None = None  # what its model card says of its run, where it has one

    def __init__(
        self, model: Model, spec: ModelSpec, device: torch.device, calibration: Calibration | None = None
    ) -> None:
        """Use `npmatch.load(RUN)`."""
        self.model = model.to(device).eval()
        self.model.freeze()
        self.spec = spec
        self.device = device
        self.calibration = calibration  # of the run; None where it has none

    @property
    def class_names(self) -> tuple[str, ...]:
        """K names, in the order of the probabilities."""
        return self.spec.class_names

    def predict(self, images: Any, batch_size: int = 256) -> Prediction:
        """Predicts files, PIL images, or an array N H W [C] or N C H W (uint8, or floats in [0, 1]).

        The probabilities are the model's own; `decide`, or `calibration.apply(prediction)`, gives the calibrated ones.
        """
        parts = [self._predict_batch(batch) for batch in self._batches(images, batch_size)]
        if not parts:
            empty = torch.zeros(0)
            return Prediction(torch.zeros(0, len(self.class_names)), empty)
        return Prediction.cat(parts)

    def decide(self, images: Any, wishes: Wishes | None = None, batch_size: int = 256, **changes: Any) -> Decisions:
        """Calibrated predictions and what follows from them: decide(images, abstain=0.05, ood=True, coverage=0.9).

        Args:
            images: as `predict` takes them.
            wishes: what to decide, as one object; the words below change it.
            batch_size: images at a time.
            **changes: `abstain`, the highest error rate among predictions that are not withheld, and `confidence` that
                it holds; `ood`, whether to score images unlike any seen, and `ood_quantile` above which one is flagged;
                `coverage` of prediction sets; `calibrate=False` for the model's own probabilities.
        """
        decider = Decider(self.calibration, dataclasses.replace(wishes or Wishes(), **changes))
        parts = [decider(*self.describe(batch)) for batch in self._batches(images, batch_size)]
        if not parts:
            raise NPMatchError("nothing to decide on: no image was given")
        return Decisions.cat(parts)

    def describe(self, images: Tensor) -> tuple[Prediction, Tensor]:
        """What the model says of uint8 images N C H W, and the features N F it says it from."""
        return describe_batch(self.model, images, self.spec, self.device)

    def _predict_batch(self, images: Tensor) -> Prediction:
        return predict_batch(self.model, images, self.spec, self.device)

    def _batches(self, images: Any, size: int) -> Iterable[Tensor]:
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
        """One image of any kind as the uint8 C H W this model takes."""
        if isinstance(image, Tensor | np.ndarray):
            return as_pixels(image[None], self.spec)[0]
        if isinstance(image, Image.Image):
            return to_tensor(image, self.spec.stored_side, self.spec.channels)
        if not isinstance(image, str | Path):
            raise NPMatchError(f"images must be {KINDS_OF_IMAGES}; one of them is {type(image).__name__}")
        return decode_image(Path(image), self.spec.stored_side, self.spec.channels)

    def save_files(self, folder: Path) -> None:
        """model.safetensors and config.json, and the calibration where there is one."""
        save_model(folder, self.model, self.spec)
        if self.calibration is not None:
            self.calibration.save(folder)
        else:  # what is there is another model's
            Calibration.remove(folder)

    def facts(self) -> ModelFacts:
        """What is known of the model, and of its run where it was loaded from one."""
        spec = self.spec
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
            **({} if self.run_facts is None else self.run_facts()),
        )

    def kept_card(self) -> str | None:
        """The model card it came with, where it did not come from a run."""
        if self.folder is None or self.run_facts is not None or not (self.folder / CARD).is_file():
            return None
        return (self.folder / CARD).read_text(encoding="utf-8")

    @classmethod
    def load_files(cls, folder: Path, device: str | None) -> Self:
        """The model that `save_files` wrote."""
        loaded = load_model(folder, device)
        assert isinstance(loaded, cls)
        return loaded


def load_model(
    folder: str | Path, device: str | None = None, trust_code: bool = False, calibrated: bool = True
) -> Classifier:
    """A saved model: model.safetensors and config.json, with its calibration where it has one and that is wanted."""
    folder = Path(folder)
    path = folder / MODEL_CONFIG
    spec = ModelSpec.load(path)
    with trusting(trust_code):
        refuse_code([spec.algorithm, spec.backbone_config.get("name")], path)
    state, _ = load_tensors(folder / MODEL_WEIGHTS)
    try:
        model = model_with(spec, state)
    except TypeError as error:
        raise NPMatchError(f"{path}: does not describe a model of this version ({error})") from error
    except (ValueError, RuntimeError) as error:
        what = str(error).splitlines()[0]
        raise NPMatchError(f"{folder / MODEL_WEIGHTS}: does not fit {path} ({what})") from error
    classifier = Classifier(model, spec, choose_device(device))
    classifier.folder = folder
    if calibrated:
        classifier.calibration = Calibration.load(folder, len(classifier.class_names))
    return classifier
