"""What a run leaves out of its images, found before it starts; the run's quarantine.json lists each file and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from npmatch.data.check.check import check_data
from npmatch.data.check.findings import DataReport, Quarantined
from npmatch.data.config import DataConfig
from npmatch.data.labels import positions_by_name
from npmatch.data.sources.listing import ListedDataset
from npmatch.data.sources.registry import find_root, is_listed
from npmatch.errors import NPMatchError
from npmatch.training.display import Display, counting
from npmatch.types import Dataset, ImageSet

NAMED = 5  # files named on the terminal; the list has them all


def check_images(dataset: Dataset, config: DataConfig, display: Display) -> list[Quarantined]:
    """Opens every image of a user's own folder or table; tells what is left out, fails where nothing would work."""
    if not config.check or not isinstance(dataset, ListedDataset) or not is_listed(config.source):
        return []
    listing, root = dataset.listing, find_root(config.source, config.root)
    with counting("checking images", len(listing.files), display.quiet) as advance:
        report = check_data(listing, str(root), config.workers, advance=advance)
    if report.faults:
        raise NPMatchError(f"{report.faults[0]} (npmatch check-data {root} says all)")
    tell(report, display)
    return report.quarantine


def tell(report: DataReport, display: Display) -> None:
    """One line on what is left out; a leak between training and test is a warning."""
    files = sum(report.images.values())
    reasons = Counter(file.kind for file in report.quarantine)
    counted = ", ".join(f"{count} {kind}" for kind, count in reasons.most_common())
    out = f"{len(report.quarantine)} left out ({counted}; listed in quarantine.json)" if counted else "all usable"
    display.say(f"data: {files} files, {out}")
    if leaked := [file.path for file in report.quarantine if file.kind == "leak"]:
        display.warn(
            f"{len(leaked)} training image(s) are test images too and are left out of training: {_some(leaked)}"
        )
    if unread := report.names("unread-format"):
        told = f"{len(unread)} picture(s) in a format that is not read are left out; save them as JPEG or PNG"
        display.warn(f"{told}: {_some(unread)}")
    if unused := report.names("unused-folder"):
        display.warn(f"not used, as they lie beside labeled, unlabeled and test: {', '.join(map(repr, unused))}")
    if alike := report.names("near-leak"):
        display.warn(f"{len(alike)} images look the same in training and test: npmatch check-data {report.data}")


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(map(repr, names[:NAMED]))}{more}"


def positions_of(quarantine: Sequence[Quarantined], dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Where the files are in the training and the test set."""
    return _positions(quarantine, dataset.train), _positions(quarantine, dataset.test)


def _positions(quarantine: Sequence[Quarantined], images: ImageSet | None) -> Tensor:
    place = positions_by_name(images) if images is not None and quarantine else {}
    return torch.tensor(sorted(place[file.path] for file in quarantine if file.path in place), dtype=torch.int64)
