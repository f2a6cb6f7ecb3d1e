"""A run's data opened again: its configuration, images and split, and the images without a label."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from npmatch.config.tree import Config, read_config_of_run
from npmatch.data import ImageStore, Split, load_configured
from npmatch.data.images import SelectedImages
from npmatch.data.labels import (
    file_of,
    image_name,
    positions_by_name,
)
from npmatch.errors import NPMatchError
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
    run = Path(run)
    if not run.is_dir():
        raise NPMatchError(f"{run}: no such run")
    if not (run / "config.yaml").is_file():
        raise NPMatchError(f"{run}: no config.yaml in it, which says what the data is; give a folder that train wrote")
    config = read_config_of_run(run)
    if data is not None:
        config = replace(config, data=replace(config.data, root=str(data)))
    dataset = load_configured(config.data)
    return RunData(run, config, dataset, Split.load(run / "split.json", dataset))
