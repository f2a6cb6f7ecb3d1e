"""What a run's folder holds from its start on, and whether a run may go on there."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch

from npmatch.config.paths import ENVIRONMENT, STARTED_IN, read_environment, working_folder
from npmatch.config.tree import Config, read_config_of_run, write_config
from npmatch.data import Dataset, Split, fingerprint, make_split
from npmatch.data.check.findings import Quarantined
from npmatch.data.identity import changes
from npmatch.data.split import without
from npmatch.distributed.ranks import world
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.runs.quarantine import check_first, positions_of, write_quarantine
from npmatch.runs.resume import continued_split
from npmatch.training import Display
from npmatch.version import __version__

STARTED = (
    "split.json",
    "data.json",
    "quarantine.json",
    ENVIRONMENT,
)  # written, in this order, before config.yaml


def is_run(folder: Path) -> bool:
    """Whether a run was started there: config.yaml is the last thing its start writes."""
    return (folder / "config.yaml").exists()


def find_split(
    dataset: Dataset, config: Config, folder: Path, display: Display, allow_change: bool = False
) -> tuple[Split, list[Quarantined] | None]:
    """The run's own split, that of the run it starts from, the one the configuration names, or a fresh one.

    The latter two with the files that a look at all images found unusable; None where nobody had to look.
    """
    d, own = config.data, folder / "split.json"
    if is_run(folder) and not (allow_change and Split.load(own).fingerprint != fingerprint(dataset)):
        return Split.load(own, dataset), None
    if config.training.start_from is not None:
        return continued_split(config, dataset), None
    quarantine = check_first(config, display)
    train, test = positions_of(quarantine, dataset)
    if d.split is not None:
        split = Split.load(Path(d.split).expanduser(), dataset)
    else:
        split = make_split(dataset, d.labels, config.seed, d.validation, d.include_labeled, train)
    return without(split, train, test), quarantine


def refuse_other_data(folder: Path, data: dict[str, Any], allow_change: bool, display: Display) -> None:
    """A run goes on with the data and the split it was started with, unless told otherwise."""
    path = folder / "data.json"
    if not is_run(folder) or not path.exists():
        return
    try:
        changed = changes(json.loads(path.read_text(encoding="utf-8")), data)
    except (ValueError, AttributeError, RecursionError) as error:
        raise NPMatchError(f"{path}: not what npmatch wrote ({error}); restore or remove it") from error
    if changed and not allow_change:
        raise NPMatchError(
            f"{folder}: was started with other data ({'; '.join(changed)}); bring that back, choose another --out, or "
            "add --allow-change"
        )
    if changed:
        display.warn(f"{folder}: going on with other data ({'; '.join(changed)})")


def start_folder(
    folder: Path,
    config: Config,
    split: Split,
    data: dict[str, Any],
    quarantine: list[Quarantined] | None,
    device: torch.device,
) -> None:
    """What a run's folder holds from its first step on; config.yaml last, because it is what makes it a run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        split.save(folder / "split.json")
        write_atomically(folder / "data.json", json.dumps(data, indent=2).encode())
        write_quarantine(folder, quarantine)
        write_atomically(folder / ENVIRONMENT, json.dumps(environment(config, device), indent=2).encode())
        write_config(config, folder / "config.yaml")
    except OSError as error:
        raise NPMatchError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from error


def environment(config: Config, device: torch.device) -> dict[str, Any]:
    """Versions, device and seed of a run, and where it was started."""
    import torchvision

    return {
        "npmatch": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "ranks": world(),
        "seed": config.seed,
        "commit": _commit(),
        STARTED_IN: working_folder(),
    }


def written_version(folder: Path) -> str | None:
    """The version of npmatch that wrote a run's folder, where it says so."""
    version = read_environment(folder).get("npmatch")
    return None if version is None else str(version)


def read_run_config(folder: Path) -> Config:
    """A run's configuration; where it cannot be read, which version of npmatch wrote it."""
    try:
        return read_config_of_run(folder)
    except NPMatchError as error:
        written_by = written_version(folder)
        if written_by in (None, __version__):
            raise
        raise NPMatchError(
            f"{error}; written by npmatch {written_by}, which this version, {__version__}, cannot go on from: use that "
            "version, or train again in another --out"
        ) from error


def _commit() -> str | None:
    """The commit npmatch runs from, where it runs from a checkout."""
    import subprocess

    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
