"""Paths in a run's configuration: stored as typed, so relative ones start from the folder the run was started in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GIVEN_LABELS_KEY = "data.given_labels"
PATH_KEYS = (
    "data.root",
    "data.foreign_root",
    "data.split",
    GIVEN_LABELS_KEY,
    "training.start_from",
    "backbone.weights",
)


def working_folder() -> str | None:
    """The current working directory, or None if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def paths_of_run(layer: Mapping[str, Any], run: Path, started_in: object) -> dict[str, str]:
    """Paths in a run's configuration that must be resolved before use, as a layer over it.

    The file of given labels lies in the run's own folder, wherever that is now. Other relative paths start from the
    folder the run was started in, unless they do not exist there: if a whole project has been moved, they start from
    the current folder.
    """
    resolved = {}
    if isinstance(started_in, str) and started_in != working_folder():
        for key in PATH_KEYS:
            path = os.path.join(started_in, str(layer.get(key)))  # an absolute path stays as it is
            if layer.get(key) is not None and os.path.exists(path):
                resolved[key] = path
    given_labels = layer.get(GIVEN_LABELS_KEY)
    if given_labels is not None and (in_run := run / Path(str(given_labels)).name).exists():
        resolved[GIVEN_LABELS_KEY] = str(in_run)
    return resolved


def same_path(one: str | None, other: str | None) -> bool:
    """Whether two values of a key in PATH_KEYS mean the same path."""
    first, second = (None if path is None else os.path.abspath(os.path.expanduser(path)) for path in (one, other))
    return first == second
