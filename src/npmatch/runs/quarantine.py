"""What a run leaves out of its images, found before it starts: RUN/quarantine.json lists each file and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from npmatch.config.tree import Config
from npmatch.data.check.check import check_data, list_data
from npmatch.data.check.findings import DataReport, Quarantined
from npmatch.data.labels import positions_by_name
from npmatch.data.sources.registry import find_root
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.training.display import Display, counting
from npmatch.types import Dataset, ImageSet

FILE = "quarantine.json"
NAMED = 5  # files named on the terminal; the list has them all


def check_first(config: Config, display: Display) -> list[Quarantined]:
    """Looks at every image of a user's own folder or table; says what it leaves out, fails where nothing would work."""
    d = config.data
    root = find_root(d.source, None if d.root is None else Path(d.root))
    if not d.check or d.source not in ("folder", "csv") or root is None:
        return []
    listing = list_data(root)
    with counting("checking images", len(listing.files), display.quiet) as advance:
        report = check_data(listing, str(root), d.workers, advance=advance)
    if report.faults:
        raise NPMatchError(f"{report.faults[0]} (npmatch check-data {root} says all)")
    tell(report, display)
    return report.quarantine


def tell(report: DataReport, display: Display) -> None:
    """One line on what is left out; a leak between training and test is a warning."""
    files = sum(report.images.values())
    reasons = Counter(file.kind for file in report.quarantine)
    counted = ", ".join(f"{count} {kind}" for kind, count in reasons.most_common())
    out = f"{len(report.quarantine)} left out ({counted}; listed in {FILE})" if counted else "all usable"
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


def write_quarantine(folder: Path, quarantine: Sequence[Quarantined] | None) -> None:
    """RUN/quarantine.json, where there is anything to list; None leaves it as it is."""
    if quarantine:
        rows = [{"path": file.path, "reason": file.kind, "detail": file.detail} for file in quarantine]
        write_atomically(folder / FILE, (json.dumps(rows, indent=1) + "\n").encode())
    elif quarantine is not None:
        (folder / FILE).unlink(missing_ok=True)
