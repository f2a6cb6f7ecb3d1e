"""From the words of a command to a whole configuration: recipe or defaults, file, settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from npmatch.algorithms import find_algorithm
from npmatch.config.choices import Choice, facts_of_listing, make_choices
from npmatch.config.recipes import OWN_IMAGES, recipe_layer
from npmatch.config.tree import CODE_KEYS, Config, make_config, parse_overrides, read_config_file
from npmatch.data.sources.listing import Listing
from npmatch.data.sources.registry import find_root, is_listed, list_data
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.user_code import remember_typed

Overrides = Mapping[str, Any] | Iterable[str]


class Resolved(NamedTuple):
    """A configuration, and how it came about."""

    config: Config
    choices: list[Choice]  # what was chosen for a user's images, in place of what was not given
    listing: Listing | None = None  # of these images: a folder is walked once, and then trained on as it was found


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
    layers = Layers.of(data, algorithm, seed, config_file, overrides)
    return resolve(recipe, layers, device).config


class Layers(NamedTuple):
    """What a user has said, as layers of configuration; later ones win."""

    file: dict[str, Any]
    words: dict[str, Any]

    @staticmethod
    def of(
        data: str | Path | None,
        algorithm: str | None,
        seed: int | None,
        config_file: str | Path | None,
        overrides: Overrides,
    ) -> Layers:
        """Options as the keys they stand for, and key=value words, which win over them."""
        file = {} if config_file is None else read_config_file(Path(config_file))
        words = dict(overrides) if isinstance(overrides, Mapping) else parse_overrides(overrides)
        flags = {"data.root": None if data is None else str(data), "algorithm.name": algorithm, "seed": seed}
        return Layers(file, {key: value for key, value in flags.items() if value is not None} | words)

    @property
    def given(self) -> dict[str, Any]:
        """Both as one layer."""
        return {**self.file, **self.words}

    def check_minutes(self, minutes: float | None) -> None:
        """Refuses a time that is none, and a time beside a number of steps."""
        if minutes is None:
            return
        if not 0 < minutes < math.inf:
            raise NPMatchError(f"--minutes {minutes:g}: give a time above 0")
        if "training.iterations" in self.given:
            raise NPMatchError("give --minutes or training.iterations=…, not both")


def resolve(
    recipe: str | None,
    layers: Layers,
    device: str | None,
    remembered: Mapping[str, Any] | None = None,
    listing: Listing | None = None,
) -> Resolved:
    """The configuration that a recipe or a user's images, and what was given, lead to.

    `remembered` are the choices of an earlier start of the run, which then stay; `listing` is that of the images, where
    they have been listed already.
    """
    given = layers.given
    remember_typed(given.get(key) for key in CODE_KEYS)
    name = str(given.get("algorithm.name", Config.name))
    recipe = recipe or layers.file.get("recipe")
    choices: list[Choice] = []
    if recipe is not None:
        base = recipe_layer(recipe, name)
    elif {"data.root", "data.source"} & given.keys():
        source = str(given.get("data.source", OWN_IMAGES["data.source"]))
        root, settings = find_root(source, given.get("data.root")), find_algorithm(name).settings
        if is_listed(source) and root is not None:
            listing = listing or list_data(root)
            if listing.faults:  # from which nothing sensible follows
                raise NPMatchError(listing.faults[0])
            on_cuda = choose_device(device).type == "cuda"
            choices = make_choices(facts_of_listing(listing), {**settings, **given}, on_cuda)
        base = {**OWN_IMAGES, **{choice.key: choice.value for choice in choices}, **settings}
    else:
        raise NPMatchError("nothing to train on: name a recipe (npmatch recipes lists them) or give --data DIR")
    config = make_config({**base, **(remembered or {})}, layers.file, layers.words)
    return Resolved(config, choices, listing)
