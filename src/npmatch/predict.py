"""What people do with a trained model: load it, predict images, write the answers down."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from npmatch.algorithms import find_algorithm
from npmatch.augment import normalize
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.data import ImageSet, decode_image, iterate_images, to_tensor
from npmatch.decide import Calibration, Decider, Decisions, Wishes
from npmatch.heads import Bank, Model
from npmatch.hub import CARD, Pretrained
from npmatch.imports import refuse_code, trusting
from npmatch.ranks import from_all, local_device, my_share
from npmatch.report.model_card import ModelFacts
from npmatch.run_facts import run_facts
from npmatch.training import load_tensors, save_tensors, write_atomically
from npmatch.types import ImageStore, NPMatchError, Prediction, Task
from npmatch.version import __version__

FORMAT = 1  # of config.json
KINDS_OF_IMAGES = "file names, PIL images, or arrays of uint8 or of floats in [0, 1]"


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
        """Calibrated predictions and what follows from them: decide(images, abstain=0.05, ood=True, coverage=0.9)."""
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
    folder = Path(folder)
    if not folder.is_dir():
        raise NPMatchError(f"{folder}: no such run")
    card = ModelCard.load(folder / "config.json")
    with trusting(trust_code):
        refuse_code([card.algorithm, card.backbone_config.get("name")], folder / "config.json")
    try:
        model = empty_model(card)
    except TypeError as error:
        raise NPMatchError(f"{folder / 'config.json'}: does not describe a model of this version ({error})") from error
    state, _ = load_tensors(folder / "model.safetensors")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise NPMatchError(f"{folder / 'model.safetensors'}: does not fit {folder / 'config.json'}") from error
    classifier = Classifier(model, card, choose_device(device), Calibration.load(folder))
    classifier.folder = folder
    return classifier


def empty_model(card: ModelCard) -> Model:
    """The network that a card describes, before its weights are read."""
    algorithm = find_algorithm(card.algorithm)
    settings = {k: v for k, v in card.algorithm_config.items() if k != "name"}
    backbone = make_backbone(
        dataclasses.replace(BackboneConfig(**card.backbone_config), pretrained=False), card.channels
    )
    task = Task(card.class_names, card.num_labeled, num_unlabeled=0)
    return algorithm.make_model(backbone, task, algorithm.Config(**settings))


def choose_device(name: str | None) -> torch.device:
    """The device asked for; where none was, CUDA if there is one."""
    chosen = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise NPMatchError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return local_device(chosen)


def as_pixels(images: Tensor | np.ndarray[Any, Any], card: ModelCard) -> Tensor:
    """An array of images as uint8 N C H W, or one line on what does not fit."""
    if isinstance(images, np.ndarray) and images.dtype.kind not in "uifb":
        raise NPMatchError(f"images must be {KINDS_OF_IMAGES}, not an array of {images.dtype}")
    pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.ascontiguousarray(images))
    if pixels.dim() == 3:
        pixels = pixels[:, None]
    elif pixels.dim() == 4 and pixels.shape[1] != card.channels and pixels.shape[-1] == card.channels:
        pixels = pixels.permute(0, 3, 1, 2)
    wanted = (card.channels, card.stored_side, card.stored_side)
    if tuple(pixels.shape[1:]) != wanted:
        raise NPMatchError(f"images of shape {tuple(images.shape)}: this model takes N × {wanted} (C H W)")
    if pixels.is_floating_point():
        if pixels.numel() and not (float(pixels.min()) >= 0 and float(pixels.max()) <= 1):
            raise NPMatchError("images as floats must lie in [0, 1]; pass uint8 for 0–255")
        return (pixels * 255).round().to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise NPMatchError(f"images must be uint8 or floats in [0, 1], not {pixels.dtype}")
    return pixels


@torch.no_grad()
def predict_batch(
    model: nn.Module | Callable[[Tensor], Prediction], images: Tensor, card: ModelCard, device: torch.device
) -> Prediction:
    """What the model says of uint8 images N C H W, on the CPU."""
    prediction: Prediction = model(as_network_input(images, card, device))
    return prediction.to("cpu")


@torch.no_grad()
def describe_batch(model: Model, images: Tensor, card: ModelCard, device: torch.device) -> tuple[Prediction, Tensor]:
    """What the model says of uint8 images N C H W, and the features N F it says it from, on the CPU."""
    prediction, features = model.describe(as_network_input(images, card, device))
    return prediction.to("cpu"), features.cpu()


def as_network_input(images: Tensor, card: ModelCard, device: torch.device) -> Tensor:
    """uint8 N C H W → the middle of each, normalised, on the device."""
    margin = (card.stored_side - card.side) // 2
    middle = images.to(device)[..., margin : margin + card.side, margin : margin + card.side]
    return normalize(middle, card.mean, card.std)


def predict_store(
    model: nn.Module | Callable[[Tensor], Prediction],
    images: ImageStore,
    card: ModelCard,
    device: torch.device,
    batch_size: int,
) -> Prediction:
    """What the model says of a whole store, batch after batch."""
    batches = iterate_images(images, batch_size)
    return Prediction.cat([predict_batch(model, batch, card, device) for batch in batches])


def predict_together(
    model: nn.Module | Callable[[Tensor], Prediction],
    images: ImageStore,
    card: ModelCard,
    device: torch.device,
    batch_size: int,
) -> Prediction:
    """What `predict_store` gives, to every rank: they take turns at the batches and tell one another."""
    batches = iterate_images(images, batch_size, share=my_share())
    by_rank = from_all([predict_batch(model, batch, card, device) for batch in batches])
    in_turn = (part for turn in zip_longest(*by_rank) for part in turn if part is not None)
    return Prediction.cat(list(in_turn))


def describe_store(
    model: Model, images: ImageStore, card: ModelCard, device: torch.device, batch_size: int, workers: int = 2
) -> tuple[Prediction, Tensor]:
    """Predictions and features N F of a whole store, batch after batch."""
    batches = iterate_images(images, batch_size, workers)
    parts = [describe_batch(model, batch, card, device) for batch in batches]
    return Prediction.cat([prediction for prediction, _ in parts]), torch.cat([features for _, features in parts])


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
            "image": names,
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
