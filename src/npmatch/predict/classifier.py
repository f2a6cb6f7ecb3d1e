"""What people do with a trained model: load it, predict images, write the answers down."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from npmatch.data import ImageSet, decode_image, to_tensor
from npmatch.decide import Calibration, Decider, Decisions, Wishes
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.files import in_utf8, write_atomically
from npmatch.heads import Model
from npmatch.predict.batches import KINDS_OF_IMAGES, as_pixels, describe_batch, predict_batch
from npmatch.predict.card import ModelFacts
from npmatch.predict.hub import CARD, Pretrained, run_facts
from npmatch.predict.saved import ModelCard, model_with, save_model
from npmatch.training import load_tensors
from npmatch.types import Prediction
from npmatch.user_code import refuse_code, trusting
from npmatch.version import __version__


class Classifier(Pretrained):
    """A trained model: images in, labels with uncertainty out."""

    folder: Path | None = None  # where it was loaded from

    def __init__(
        self, model: Model, card: ModelCard, device: torch.device, calibration: Calibration | None = None
    ) -> None:
        """Use `npmatch.load(RUN)`."""
        self.model = model.to(device).eval()
        self.model.freeze()
        self.card = card
        self.device = device
        self.calibration = calibration  # of the run; None where it has none

    @property
    def class_names(self) -> tuple[str, ...]:
        """K names, in the order of the probabilities."""
        return self.card.class_names

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
        return describe_batch(self.model, images, self.card, self.device)

    def _predict_batch(self, images: Tensor) -> Prediction:
        return predict_batch(self.model, images, self.card, self.device)

    def _batches(self, images: Any, size: int) -> Iterable[Tensor]:
        if isinstance(images, Tensor | np.ndarray):
            yield from torch.split(as_pixels(images, self.card), size)
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
            return as_pixels(image[None], self.card)[0]
        if isinstance(image, Image.Image):
            return to_tensor(image, self.card.stored_side, self.card.channels)
        if not isinstance(image, str | Path):
            raise NPMatchError(f"images must be {KINDS_OF_IMAGES}; one of them is {type(image).__name__}")
        return decode_image(Path(image), self.card.stored_side, self.card.channels)

    def save_files(self, folder: Path) -> None:
        """model.safetensors and config.json, and the calibration where there is one."""
        save_model(folder, self.model, self.card)
        if self.calibration is not None:
            self.calibration.save(folder)
        else:  # what is there is another model's
            Calibration.remove(folder)

    def facts(self) -> ModelFacts:
        """What is known of the model, and of its run where it was loaded from one."""
        card = self.card
        return ModelFacts(
            algorithm=card.algorithm,
            backbone=str(card.backbone_config.get("name")),
            class_names=card.class_names,
            channels=card.channels,
            side=card.stored_side,
            num_labeled=card.num_labeled,
            temperature=None if self.calibration is None else self.calibration.temperature,
            calibration_labels=0 if self.calibration is None else self.calibration.n,
            version=__version__,
            **({} if self.folder is None else run_facts(self.folder)),
        )

    def kept_card(self) -> str | None:
        """The model card it came with, where it did not come from a run."""
        if self.folder is None or (self.folder / "config.yaml").exists() or not (self.folder / CARD).is_file():
            return None
        return (self.folder / CARD).read_text(encoding="utf-8")

    @classmethod
    def load_files(cls, folder: Path, device: str | None) -> Self:
        """As `npmatch.load`."""
        loaded = load(folder, device)
        assert isinstance(loaded, cls)
        return loaded


def load(folder: str | Path, device: str | None = None, trust_code: bool = False) -> Classifier:
    """The model of a finished run; nothing is unpickled on the way, and no code run that the run's files name.

    `trust_code`: whether they may name a backbone or an algorithm of yours (`package.module:Class`), which is then run.
    """
    classifier = load_uncalibrated(folder, device, trust_code)
    classifier.calibration = Calibration.load(Path(folder), len(classifier.class_names))
    return classifier


def load_uncalibrated(folder: str | Path, device: str | None = None, trust_code: bool = False) -> Classifier:
    """As `load`, without a look at the calibration, which is about to be written anew."""
    folder = Path(folder)
    if not folder.is_dir():
        raise NPMatchError(f"{folder}: no such run")
    if (folder / "config.yaml").exists() and not (folder / "config.json").exists():
        raise NPMatchError(f"{folder}: this run is not finished; go on with it: npmatch train --out {folder} --resume")
    card = ModelCard.load(folder / "config.json")
    with trusting(trust_code):
        refuse_code([card.algorithm, card.backbone_config.get("name")], folder / "config.json")
    state, _ = load_tensors(folder / "model.safetensors")
    try:
        model = model_with(card, state)
    except TypeError as error:
        raise NPMatchError(f"{folder / 'config.json'}: does not describe a model of this version ({error})") from error
    except (ValueError, RuntimeError) as error:
        what = str(error).splitlines()[0]
        raise NPMatchError(f"{folder / 'model.safetensors'}: does not fit {folder / 'config.json'} ({what})") from error
    classifier = Classifier(model, card, choose_device(device))
    classifier.folder = folder
    return classifier


def write_test_predictions(
    folder: Path, prediction: Prediction, held_out: ImageSet, class_names: Sequence[str]
) -> Path:
    """RUN/predictions/test.parquet: one row per held-out image."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "predictions" / "test.parquet"
    path.parent.mkdir(exist_ok=True)
    names = held_out.names or [str(i) for i in range(len(held_out))]
    table = pa.table(
        {
            "image": [in_utf8(name) for name in names],
            "true_label": [class_names[i] for i in held_out.labels.tolist()],
            "label": [class_names[i] for i in prediction.label.tolist()],
            "confidence": prediction.confidence.numpy(),
            "uncertainty": prediction.entropy.numpy(),
            "probabilities": prediction.probs.tolist(),
        }
    )
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    write_atomically(path, buffer.getvalue().to_pybytes())
    return path
