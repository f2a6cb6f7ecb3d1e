"""A run opened again: its model, its data, and the images that are still without a label."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.config.tree import Config, read_config_file
from npmatch.data import ImageStore, Split, load_configured
from npmatch.data.images import SelectedImages, file_of
from npmatch.data.labels import image_name, positions_by_name
from npmatch.errors import NPMatchError
from npmatch.predict.classifier import Classifier, load_model
from npmatch.runs.folder import RunFolder
from npmatch.runs.label_book import LabelBook
from npmatch.types import Dataset


@dataclass(frozen=True)
class UnlabeledImages:
    """Images nobody has labelled yet."""

    names: list[str]  # N, as a LabelBook calls them
    images: ImageStore  # N
    positions: Tensor  # N, int64: in the run's training set


@dataclass(frozen=True)
class RunData:
    """What a run was trained on, loaded again."""

    folder: Path
    config: Config
    dataset: Dataset
    split: Split

    def book(self, outside: Iterable[str] = ()) -> LabelBook:
        """The run's label book, for its training images less those held out, and `outside` ones (absolute paths)."""
        unused = torch.cat([self.split.validation, self.split.left_out]).tolist()
        held_out = {image_name(self.dataset.train, position) for position in unused}
        known = positions_by_name(self.dataset.train).keys() - held_out
        return LabelBook(self.folder, self.dataset.class_names, known | set(outside))

    def unlabeled(self, labels: Container[str] = ()) -> UnlabeledImages:
        """The training images without a label, those among `labels` (a book's) left out."""
        train = self.dataset.train
        without = torch.ones(len(train), dtype=torch.bool)
        without[self.split.labeled] = False
        without[self.split.validation] = False
        without[self.split.left_out] = False
        positions = [i for i in without.nonzero().flatten().tolist() if image_name(train, i) not in labels]
        index = torch.tensor(positions, dtype=torch.int64)
        return UnlabeledImages([image_name(train, i) for i in positions], SelectedImages(train.images, index), index)

    def file(self, position: int) -> Path | None:
        """The file of a training image; None where the data does not come as one file for each."""
        return file_of(self.dataset.train.images, position)


def open_run_data(run: str | Path, data: str | Path | None = None) -> RunData:
    """A run's configuration, images and split; `data` where the images have moved."""
    folder = existing_run(run)
    if not folder.exists():
        raise NPMatchError(
            f"{folder}: no {folder.config.name} in it, which says what the data is; give a folder that train wrote"
        )
    config = folder.read_config()
    if data is not None:
        config = replace(config, data=replace(config.data, root=str(data)))
    dataset = load_configured(config.data)
    return RunData(folder.path, config, dataset, Split.load(folder.split, dataset))


def load(
    folder: str | Path, device: str | None = None, trust_code: bool = False, calibrated: bool = True
) -> Classifier:
    """The model of a finished run; nothing is unpickled on the way, and no code run that the run's files name.

    Args:
        folder: the run, or a folder that holds model.safetensors and config.json alone.
        device: `cpu` or `cuda`; None takes CUDA where there is one.
        trust_code: whether the files may name a backbone or an algorithm of yours (`package.module:Class`), which is
            then run.
        calibrated: whether to load the run's calibration, where it has one.
    """
    run = existing_run(folder)
    if run.exists() and not run.is_finished():
        raise NPMatchError(f"{run}: this run is not finished; go on with it: npmatch train --out {run} --resume")
    classifier = load_model(run.path, device, trust_code, calibrated)
    if run.exists():
        classifier.run_facts = lambda: facts_for_card(run)
    return classifier


def existing_run(folder: str | Path) -> RunFolder:
    """A folder that is there."""
    run = RunFolder(folder)
    if not run.path.is_dir():
        raise NPMatchError(f"{run}: no such run")
    return run


def facts_for_card(run: RunFolder) -> dict[str, Any]:
    """Data, counts and final scores as fields of ModelFacts.

    Where the images lie stays out of it: a path names people and machines.
    """
    facts: dict[str, Any] = {
        "data": str(read_config_file(run.config).get("data.source")),
        "scores": {key: value for key, value in run.final_scores().items() if key != "seconds"},
    }
    if run.split.is_file():
        facts["num_unlabeled"] = len(Split.load(run.split).unlabeled)
    return facts
