"""Opening a run: its model, its data, and the images that still have no label."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.config.tree import Config, read_config_file
from npmatch.data import ImageStore, Split, load_configured
from npmatch.data.config import DataConfig
from npmatch.data.contents import KnownImages
from npmatch.data.images import FileImages, SelectedImages, file_of
from npmatch.data.labels import image_name, positions_by_name
from npmatch.data.sources.folders import list_folder
from npmatch.data.sources.label_table import LABEL_TABLE
from npmatch.data.sources.listing import Listing
from npmatch.data.sources.registry import find_root
from npmatch.errors import NPMatchError
from npmatch.files import read_regular
from npmatch.predict.classifier import Classifier, load_model
from npmatch.runs.audit_record import kept_for_audits
from npmatch.runs.folder import RunFolder
from npmatch.runs.label_book import LabelBook
from npmatch.types import Dataset


@dataclass(frozen=True)
class UnlabeledImages:
    """N training images without a label."""

    names: list[str]  # N, as in a LabelBook
    images: ImageStore  # N
    positions: Tensor  # N, int64: in the run's training set


@dataclass(frozen=True)
class RunData:
    """A run's configuration, data set and split."""

    folder: Path
    config: Config
    dataset: Dataset
    split: Split

    def book(self, outside: Iterable[str] = ()) -> LabelBook:
        """The run's label book. Images that are held out or left out may not be labelled; `outside` paths may."""
        unused = torch.cat([self.split.validation, self.split.left_out]).tolist()
        unused_names = {image_name(self.dataset.train, position) for position in unused}
        known = positions_by_name(self.dataset.train).keys() - unused_names
        return LabelBook(self.folder, self.dataset.class_names, known | set(outside))

    def unlabeled(self, labels: Container[str] = ()) -> UnlabeledImages:
        """The training images that have no label in the split and are not among `labels`, a label book's names."""
        train = self.dataset.train
        is_unlabeled = torch.ones(len(train), dtype=torch.bool)
        is_unlabeled[self.split.labeled] = False
        is_unlabeled[self.split.validation] = False
        is_unlabeled[self.split.left_out] = False
        positions = [i for i in is_unlabeled.nonzero().flatten().tolist() if image_name(train, i) not in labels]
        index = torch.tensor(positions, dtype=torch.int64)
        return UnlabeledImages([image_name(train, i) for i in positions], SelectedImages(train.images, index), index)

    def why_no_label(self, file: str | Path) -> str | None:
        """What forbids to label a file, in words: it contains an image that is tested on or held out.

        Links and copies are recognised by their content.
        """
        return next((why for images in self._not_to_label if (why := images.name_of(file)) is not None), None)

    @cached_property
    def _not_to_label(self) -> list[KnownImages]:
        test, train = self.dataset.test, self.dataset.train
        known = [] if test is None else [(test, torch.arange(len(test)), "the test image {}")]
        known.append((train, self.split.validation, "{}, which is held out for validation"))
        return [
            KnownImages(SelectedImages(part.images, at), [words.format(image_name(part, i)) for i in at.tolist()])
            for part, at, words in known
        ]

    def audited_copy(self, file: str | Path) -> str | None:
        """The name of the image that is kept for an audit and that a file contains; None if there is no such image."""
        return next((name for images in self._audited if (name := images.name_of(file)) is not None), None)

    @cached_property
    def _audited(self) -> list[KnownImages]:
        train, position = self.dataset.train, positions_by_name(self.dataset.train)
        kept = sorted(kept_for_audits(self.folder))
        own, outside = [name for name in kept if name in position], [name for name in kept if os.path.isabs(name)]
        at = torch.tensor([position[name] for name in own], dtype=torch.int64)
        channels, side, _ = train.images.shape
        return [
            KnownImages(SelectedImages(train.images, at), own),
            KnownImages(FileImages(outside, side, channels), outside),
        ]

    def file(self, position: int) -> Path | None:
        """The file of a training image, or None if the images are not in files of their own."""
        return file_of(self.dataset.train.images, position)


def open_run_data(run: str | Path, data: str | Path | None = None) -> RunData:
    """A run's configuration, images and split; `data` is the images' new place, if they have been moved."""
    folder = existing_run(run)
    if not folder.exists():
        raise NPMatchError(
            f"{folder}: has no {folder.config.name}, which describes the data; give a folder that train wrote"
        )
    config = folder.read_config()
    if data is not None:
        config = replace(config, data=replace(config.data, root=str(data)))
    dataset = load_configured(config.data, listing_at_start(config.data, labels_at_start(folder)))
    return RunData(folder.path, config, dataset, Split.load(folder.split, dataset))


def labels_at_start(run: RunFolder) -> bytes:
    """The table of labels that the folder of images had when a run was started; empty if it had none."""
    try:
        return read_regular(run.folder_labels) if run.folder_labels.exists() else b""
    except OSError as error:
        raise NPMatchError(f"{run.folder_labels}: cannot be read ({error.strerror or error})") from error


def listing_at_start(data: DataConfig, labels: bytes | None) -> Listing | None:
    """The images of a folder with the `labels` of a run's start: people go on labelling while there are runs.

    None if today's listing will do: the data is no folder, or has no table of labels, then or now.
    """
    root = find_root(data.source, data.root)
    if labels is None or root is None or not (labels or _has_table(data, root)):
        return None
    return list_folder(root, labels)


def _has_table(data: DataConfig, root: Path) -> bool:
    return data.source == "folder" and (root / LABEL_TABLE).is_file()


def load(
    folder: str | Path, device: str | None = None, trust_code: bool = False, calibrated: bool = True
) -> Classifier:
    """Loads the model of a finished run; nothing is unpickled, and by default no code that the run's files name is run.

    Args:
        folder: the run, or a folder with model.safetensors and config.json only.
        device: `cpu` or `cuda`; None takes CUDA if it is available.
        trust_code: whether to import and run a backbone or an algorithm that the files name (`package.module:Class`).
        calibrated: whether to load the run's calibration, if it has one.
    """
    run = existing_run(folder)
    if run.exists() and not run.is_finished():
        raise NPMatchError(f"{run}: this run is not finished; resume it with: npmatch train --out {run} --resume")
    classifier = load_model(run.path, device, trust_code, calibrated)
    if run.exists():
        classifier.run_facts = lambda: facts_for_card(run)
    return classifier


def existing_run(folder: str | Path) -> RunFolder:
    """The run folder, which must exist."""
    run = RunFolder(folder)
    if not run.path.is_dir():
        raise NPMatchError(f"{run}: no such run")
    return run


def facts_for_card(run: RunFolder) -> dict[str, Any]:
    """Data source, number of images and final scores of a run, as fields of ModelFacts.

    The path of the images is left out, because it may contain names of people and machines.
    """
    facts: dict[str, Any] = {
        "data": str(read_config_file(run.config).get("data.source")),
        "scores": {key: value for key, value in run.final_scores().items() if key != "seconds"},
    }
    if run.split.is_file():
        facts["num_unlabeled"] = len(Split.load(run.split).unlabeled)
    return facts
