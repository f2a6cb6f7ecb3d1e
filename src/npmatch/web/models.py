"""The models behind the page of a folder: that of a finished round, or before there is one the quick look.

The quick look is logistic regression on the features of a pretrained network. It needs no training: its guesses follow
every label within seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from npmatch.augment import normalize
from npmatch.backbones import make_backbone
from npmatch.backbones.config import BackboneConfig
from npmatch.backbones.weights import input_facts
from npmatch.baselines import BASELINES, out_of_fold
from npmatch.decide import Decider, Wishes
from npmatch.labelling.first import SIDE
from npmatch.predict.batches import describe_batch
from npmatch.predict.rows import read_in_batches
from npmatch.runs.open import load
from npmatch.types import Prediction
from npmatch.web.answer import describe_answer, make_decider
from npmatch.web.decoding import shared_decoder
from npmatch.web.desk import Guesses
from npmatch.web.pool import BATCH, Indices

MAX_PIXELS = 50_000_000  # of an uploaded image


class PageModel(Protocol):
    """What the page needs of a model."""

    name: str
    class_names: tuple[str, ...]

    def answer(self, content: bytes) -> dict[str, Any]:
        """The prediction for one image file."""


class RoundModel:
    """The model of a finished round."""

    def __init__(self, name: str, folder: Path, device: str | None) -> None:
        """Loads the model."""
        self.name, self.folder = name, folder
        self._classifier = load(folder, device)
        self.class_names = self._classifier.class_names
        self._decider = make_decider(self._classifier.calibration)
        self._lock = Lock()

    def answer(self, content: bytes) -> dict[str, Any]:
        """The prediction for one image file, with its uncertainty and decisions."""
        spec = self._classifier.spec
        image = shared_decoder().decode(content, spec.stored_side, spec.channels, MAX_PIXELS)
        decisions = self._decider(*self._describe(image[None]))
        withheld = None if decisions.withheld is None else bool(decisions.withheld[0])
        return {**describe_answer(decisions, self._decider, self.class_names), "withheld": withheld}

    def guesses(self, paths: list[str], rows: Iterable[int], stopped: Callable[[], bool]) -> Guesses | None:
        """Its guesses for the pictures at `rows`; None where it was `stopped`."""
        found, parts = list[int](), list[Prediction]()
        for batch, images in self._read(paths, rows):
            if stopped():
                return None
            found += batch
            parts.append(self._decider.calibration.apply(self._describe(images)[0]))
        empty = Prediction(torch.zeros(0, len(self.class_names)), torch.zeros(0))
        prediction = Prediction.cat([empty, *parts]) if not parts else Prediction.cat(parts)
        return Guesses.of(self.name, self.class_names, prediction, np.array(found, dtype=np.int64), len(paths))

    def _read(self, paths: list[str], rows: Iterable[int]) -> Iterator[tuple[list[int], Tensor]]:
        """Batches of the pictures that can be read, with their rows."""
        row_of = {Path(paths[row]): row for row in rows}
        for images, _ in read_in_batches(self._classifier, row_of, BATCH):
            if images:
                yield [row_of[path] for path, _ in images], torch.stack([image for _, image in images])

    def _describe(self, images: Tensor) -> tuple[Prediction, Tensor]:
        """Predictions and features of uint8 images n C H W; only one batch runs at a time."""
        with self._lock:
            return describe_batch(self._classifier.model, images, self._classifier.spec, self._classifier.device)


class PretrainedNetwork:
    """The network whose features the quick look uses; loaded for the first image."""

    def __init__(self, config: BackboneConfig) -> None:
        """Loads nothing."""
        self.config = config
        self._network: torch.nn.Module | None = None
        self._lock = Lock()

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """Features of uint8 images n C H W, scaled to length 1."""
        with self._lock:
            if self._network is None:
                self._network = make_backbone(self.config, images.shape[1]).eval()
            facts = input_facts(self.config)
            assert facts is not None
            f: Tensor = self._network(normalize(images, facts.mean, facts.std))
            return torch.nn.functional.normalize(f.float(), dim=-1)


@dataclass(frozen=True)
class Features:
    """Features of the pictures by a pretrained network."""

    network: PretrainedNetwork
    rows: Indices  # n: numbers of the pictures
    values: Tensor  # n F, of length 1

    def place_of(self) -> dict[int, int]:
        """Number of a picture → its row in `values`."""
        return {row: place for place, row in enumerate(self.rows.tolist())}

    def of(self, pictures: Iterable[int]) -> Tensor:
        """The features of those pictures that have some."""
        place = self.place_of()
        return self.values[[place[picture] for picture in pictures if picture in place]]


class QuickLook:
    """Logistic regression on learnt features, fitted to the labels at one moment."""

    name = ""

    def __init__(self, features: Features, labels: dict[int, str]) -> None:
        """`labels`: number of a picture → class, of two classes or more among the pictures that have features."""
        place = features.place_of()
        self.features, self.num_labels = features, len(labels)
        self.pictures = [picture for picture in labels if picture in place]
        self.class_names = tuple(sorted({labels[picture] for picture in self.pictures}))
        self.y = torch.tensor([self.class_names.index(labels[picture]) for picture in self.pictures])
        self._f = features.of(self.pictures)

    def guesses(self, number: int) -> Guesses:
        """The guesses for all pictures that have features; `number` is that of all pictures."""
        return Guesses.of("", self.class_names, self._predict(self.features.values), self.features.rows, number)

    @cached_property
    def judged(self) -> list[tuple[int, str, str]]:
        """Every labelled picture that can be judged, with its class and the one that a fit without it predicts."""
        rows, predicted = out_of_fold(BASELINES["probe"], self._f, self.y, len(self.class_names), 0)
        names = self.class_names
        return [
            (self.pictures[row], names[self.y[row]], names[label])
            for row, label in zip(rows.tolist(), predicted.tolist(), strict=True)
        ]

    def answer(self, content: bytes) -> dict[str, Any]:
        """The prediction for one image file."""
        image = shared_decoder().decode(content, SIDE, 3, MAX_PIXELS)
        decider = Decider(None, Wishes())
        features = self.features.network.describe(image[None])
        found = describe_answer(decider(self._predict(features), features), decider, self.class_names)
        return {**found, "withheld": None}

    def _predict(self, features: Tensor) -> Prediction:
        return BASELINES["probe"].predict(self._f, self.y, features, len(self.class_names), self._f[:0])
