"""The check of a user's images before a run starts. Unusable files are left out and listed in RUN/quarantine.json."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from npmatch.data.check.check import check_data
from npmatch.data.check.findings import DataReport, Quarantined
from npmatch.data.config import DataConfig
from npmatch.data.copies import Groups, copies_in_images, copies_in_report
from npmatch.data.images import DecodedImages, FileImages
from npmatch.data.labels import image_name, positions_by_name
from npmatch.data.loading import workers_or_default
from npmatch.data.sources.listing import ListedDataset
from npmatch.data.sources.registry import find_root, is_listed
from npmatch.data.streams import free_memory
from npmatch.errors import NPMatchError
from npmatch.training.display import Display, counting
from npmatch.types import Dataset, ImageSet

NAMED = 5  # files that a message names; quarantine.json lists all of them


def check_images(dataset: Dataset, config: DataConfig, display: Display) -> DataReport | None:
    """Opens every image of a user's folder or CSV and reports on them; faults of the data are errors.

    None is returned for other data, and if the check is turned off. The images are decoded for this; if the host's
    memory allows, they are kept there, and `dataset` has them from then on. No file is decoded twice.
    """
    if not config.check or not isinstance(dataset, ListedDataset) or not is_listed(config.source):
        return None
    listing, root = dataset.listing, find_root(config.source, config.root)
    pixels = reserve_memory(dataset, config)
    with counting("checking images", len(listing.files), display.quiet) as advance:
        report = check_data(listing, str(root), config.workers, advance=advance, pixels=pixels)
    if report.faults:
        raise NPMatchError(f"{report.faults[0]} (npmatch check-data {root} lists all problems)")
    show_report(report, display)
    if pixels is not None:
        hold_images(dataset, pixels)
    return report


def find_copies(dataset: Dataset, config: DataConfig, report: DataReport | None) -> Groups:
    """The copies among a user's training images, if some are to be held out.

    The splits of published data sets are what they are in the literature.
    """
    if not config.validation or not (is_listed(config.source) or ":" in config.source):
        return ()
    if report is not None:
        return copies_in_report(report, dataset.train)
    return copies_in_images(dataset.train, workers_or_default(config.workers))


def copies_of_held_out(dataset: Dataset, positions: Tensor, display: Display) -> list[Quarantined]:
    """The training images at `positions`, which a split left out because they are copies of held-out images."""
    if len(positions):
        display.say(f"data: {len(positions)} image(s) left out of training as copies of held-out ones")
    names = [image_name(dataset.train, position) for position in positions.tolist()]
    return [Quarantined(name, "held-out-copy", "shows the same picture as an image held out") for name in names]


def reserve_memory(dataset: ListedDataset, config: DataConfig) -> Tensor | None:
    """Memory of the host for all images of a data set, uint8, N C H W; None if they are not to be kept there."""
    images, files = dataset.train.images, len(dataset.listing.files)
    if config.resident == "never" or not isinstance(images, FileImages):
        return None
    if files * math.prod(images.shape) > config.resident_share * free_memory(torch.device("cpu")):
        return None
    return torch.zeros((files, *images.shape), dtype=torch.uint8)


def hold_images(dataset: ListedDataset, pixels: Tensor) -> None:
    """Gives a data set the decoded images of its files, which are listed in the order training, test."""
    first = 0
    for part in (dataset.train, dataset.test):
        if part is not None and isinstance(part.images, FileImages):
            part.images = DecodedImages(part.images, pixels[first : first + len(part)])
            first += len(part)


def show_report(report: DataReport, display: Display) -> None:
    """Shows the number of files that are left out, and warns of leaks between training and test."""
    files = sum(report.images.values())
    reasons = Counter(file.kind for file in report.quarantine)
    counts = ", ".join(f"{count} {kind}" for kind, count in reasons.most_common())
    result = f"{len(report.quarantine)} left out ({counts}; listed in quarantine.json)" if counts else "all usable"
    display.say(f"data: {files} files, {result}")
    if leaked := [file.path for file in report.quarantine if file.kind == "leak"]:
        display.warn(
            f"{len(leaked)} training image(s) are test images too and are left out of training: {_some(leaked)}"
        )
    if unread := report.names("unread-format"):
        display.warn(
            f"{len(unread)} picture(s) in a format that is not read are left out; save them as JPEG or PNG: "
            f"{_some(unread)}"
        )
    if closed := report.names("unreadable-folder"):
        display.warn(
            f"{len(closed)} folder(s) cannot be read and are left out; change their permissions: {_some(closed)}"
        )
    if unused := report.names("unused-folder"):
        display.warn(f"folders beside labeled, unlabeled and test are not used: {', '.join(map(repr, unused))}")
    if alike := report.names("near-leak"):
        display.warn(
            f"{len(alike)} images look the same in training and test; npmatch check-data {report.data} lists them"
        )


def _some(names: Sequence[str]) -> str:
    """The first few names, and the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(map(repr, names[:NAMED]))}{more}"


def positions_of(quarantine: Sequence[Quarantined], dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Positions of the unusable files in the training set and in the test set."""
    return _positions(quarantine, dataset.train), _positions(quarantine, dataset.test)


def _positions(quarantine: Sequence[Quarantined], images: ImageSet | None) -> Tensor:
    position = positions_by_name(images) if images is not None and quarantine else {}
    return torch.tensor(sorted(position[file.path] for file in quarantine if file.path in position), dtype=torch.int64)
