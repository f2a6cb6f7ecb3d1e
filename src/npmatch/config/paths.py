"""Where the files lie that a run's configuration names: as typed, which is from the folder the run was started in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GIVEN_LABELS_KEY = "data.given_labels"
PATH_KEYS = ("data.root", "data.foreign_root", "data.split", GIVEN_LABELS_KEY, "training.start_from")


def working_folder() -> str | None:
    """The folder that relative paths start from; None where it is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def paths_of_run(layer: Mapping[str, Any], run: Path, started_in: object) -> dict[str, str]:
    """Paths in a run's configuration that must be resolved before use, as a layer over it.

    A run that has been moved has its own files with it. Other relative paths start from the folder it was started in,
    unless nothing is there: a whole project may have been moved, and is then worked on in its new place.
    """
    found = {}
    if isinstance(started_in, str) and started_in != working_folder():
        for key in PATH_KEYS:
            path = os.path.join(started_in, str(layer.get(key)))  # an absolute path stays what it is
            if layer.get(key) is not None and os.path.exists(path):
                found[key] = path
    given = layer.get(GIVEN_LABELS_KEY)
    if given is not None and (own := run / Path(str(given)).name).exists():
        found[GIVEN_LABELS_KEY] = str(own)
    return found


def same_place(one: str | None, other: str | None) -> bool:
    """Whether two values of a path's key name the same place."""
    first, second = (None if path is None else os.path.abspath(os.path.expanduser(path)) for path in (one, other))
    return first == second
