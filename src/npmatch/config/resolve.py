"""From the words of a command to a whole configuration: recipe or choices, file, settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from npmatch.algorithms import find_algorithm
from npmatch.config.choices import Choice, make_choices
from npmatch.config.recipes import FOLDER, recipe_layer
from npmatch.config.tree import CODE_KEYS, Config, make_config, parse_overrides, read_config_file
from npmatch.data.check.check import list_data
from npmatch.data.sources.registry import find_root
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.user_code import remember_typed

Overrides = Mapping[str, Any] | Iterable[str]


def resolve_config(
    recipe: str | None = None,
    data: str | Path | None = None,
    algorithm: str | None = None,
    seed: int | None = None,
    config_file: str | Path | None = None,
    overrides: Overrides = (),
    device: str | None = None,
) -> Config:
    """Defaults < recipe < preset < file < command line; without a recipe, choices that follow from the images."""
    return resolve(recipe, data, algorithm, seed, config_file, overrides, device)[0]


def resolve(
    recipe: str | None,
    data: str | Path | None,
    algorithm: str | None,
    seed: int | None,
    config_file: str | Path | None,
    overrides: Overrides,
    device: str | None,
    remembered: Mapping[str, Any] | None = None,
) -> tuple[Config, list[Choice]]:
    """A configuration, and what was chosen for a folder of images; `remembered` are a run's, which then stay."""
    file = file_as_layer(config_file)
    words = words_as_layer(data, algorithm, seed, overrides)
    given = {**file, **words}
    remember_typed(given.get(key) for key in CODE_KEYS)
    name = str(given.get("algorithm.name", Config.name))
    recipe, choices = recipe or file.get("recipe"), list[Choice]()
    if recipe is not None:
        base = recipe_layer(recipe, name)
    elif {"data.root", "data.source"} & given.keys():
        base, settings = dict(FOLDER), find_algorithm(name).settings
        root = find_root(source := str(given.get("data.source", FOLDER["data.source"])), given.get("data.root"))
        if source in ("folder", "csv") and root is not None:
            on_cuda, listing = choose_device(device).type == "cuda", list_data(root)
            if listing.faults:  # from which nothing sensible follows
                raise NPMatchError(listing.faults[0])
            choices = make_choices(listing, {**settings, **given}, on_cuda)
        base |= {choice.key: choice.value for choice in choices} | settings
    else:
        raise NPMatchError("nothing to train on: name a recipe (npmatch recipes lists them) or give --data DIR")
    return make_config({**base, **(remembered or {})}, file, words), choices


def file_as_layer(config_file: str | Path | None) -> dict[str, Any]:
    """What a file of configuration says, where one is given."""
    return {} if config_file is None else read_config_file(Path(config_file))


def words_as_layer(
    data: str | Path | None, algorithm: str | None, seed: int | None, overrides: Overrides
) -> dict[str, Any]:
    """What was typed: options as the keys they stand for, and key=value words, which win."""
    words = dict(overrides) if isinstance(overrides, Mapping) else parse_overrides(overrides)
    flags = {"data.root": None if data is None else str(data), "algorithm.name": algorithm, "seed": seed}
    return {key: value for key, value in flags.items() if value is not None} | words


def check_minutes(minutes: float, config_file: str | Path | None, overrides: Overrides) -> None:
    """Refuses a time that is none, and a time beside a number of steps."""
    if not 0 < minutes < math.inf:
        raise NPMatchError(f"--minutes {minutes:g}: give a time above 0")
    file = file_as_layer(config_file)
    if "training.iterations" in {**file, **words_as_layer(None, None, None, overrides)}:
        raise NPMatchError("give --minutes or training.iterations=…, not both")
