"""From a recipe or a user's images, a YAML file and the command line to a complete configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from npmatch.algorithms import find_algorithm
from npmatch.backbones.weights import with_weights
from npmatch.config.choices import Choice, make_choices
from npmatch.config.facts import facts_of_listing, facts_of_recipe
from npmatch.config.recipes import OWN_IMAGES, find_recipe, recipe_layer
from npmatch.config.tree import CODE_KEYS, Config, make_config, parse_overrides, read_config_file
from npmatch.data.sources.listing import Listing
from npmatch.data.sources.registry import find_root, is_listed, list_data
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.user_code import remember_typed

Overrides = Mapping[str, Any] | Iterable[str]


class Resolved(NamedTuple):
    """A configuration, and what it was derived from."""

    config: Config
    choices: list[Choice]  # settings chosen from a user's images, for keys that were not given
    listing: Listing | None = None  # of these images; the folder is walked once, and the run uses this listing


def resolve_config(
    recipe: str | None = None,
    data: str | Path | None = None,
    algorithm: str | None = None,
    seed: int | None = None,
    config_file: str | Path | None = None,
    overrides: Overrides = (),
    device: str | None = None,
) -> Config:
    """The configuration from the layers defaults < recipe < preset < file < command line.

    Without a recipe, settings chosen from the images take its place.
    """
    layers = Layers.of(data, algorithm, seed, config_file, overrides)
    return resolve(recipe, layers, device).config


class Layers(NamedTuple):
    """The layers of configuration that a user gives; the command line wins over the file."""

    file: dict[str, Any]
    command_line: dict[str, Any]

    @staticmethod
    def of(
        data: str | Path | None,
        algorithm: str | None,
        seed: int | None,
        config_file: str | Path | None,
        overrides: Overrides,
    ) -> Layers:
        """Options such as --data become the keys they stand for; `overrides` win over them."""
        file = {} if config_file is None else read_config_file(Path(config_file))
        settings = dict(overrides) if isinstance(overrides, Mapping) else parse_overrides(overrides)
        options = {"data.root": None if data is None else str(data), "algorithm.name": algorithm, "seed": seed}
        return Layers(file, {key: value for key, value in options.items() if value is not None} | settings)

    @property
    def given(self) -> dict[str, Any]:
        """Both layers merged into one."""
        return {**self.file, **self.command_line}

    def check_minutes(self, minutes: float | None) -> None:
        """Refuses a time that is not positive, and a time together with a number of steps."""
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
    """The configuration of a recipe, or of a user's images, under the layers the user gave.

    `remembered` holds choices of an earlier start of this run, which stay in force. `listing` is the listing of the
    images, if they have been listed already.
    """
    given = layers.given
    remember_typed(given.get(key) for key in CODE_KEYS)
    algorithm = str(given.get("algorithm.name", Config.name))
    recipe = recipe or layers.file.get("recipe")
    choices: list[Choice] = []
    settings = find_algorithm(algorithm).settings
    if recipe is not None:
        base = recipe_layer(recipe, algorithm)
        if {"backbone.pretrained", "backbone.weights"} & given.keys():  # then it is trained as one's own images are
            facts, on_cuda = facts_of_recipe(find_recipe(recipe)), choose_device(device).type == "cuda"
            choices = [c for c in make_choices(facts, {**settings, **given}, on_cuda) if _suits_recipe(c.key)]
            base |= {choice.key: choice.value for choice in choices}
    elif {"data.root", "data.source"} & given.keys():
        source = str(given.get("data.source", OWN_IMAGES["data.source"]))
        root = find_root(source, given.get("data.root"))
        if is_listed(source) and root is not None:
            listing = listing or list_data(root)
            if listing.faults:  # no setting can be chosen from such data
                raise NPMatchError(listing.faults[0])
            on_cuda = choose_device(device).type == "cuda"
            choices = make_choices(facts_of_listing(listing), {**settings, **given}, on_cuda)
        base = {**OWN_IMAGES, **{choice.key: choice.value for choice in choices}, **settings}
    else:
        raise NPMatchError("nothing to train on: name a recipe (npmatch recipes lists them) or give --data DIR")
    config = make_config({**base, **(remembered or {})}, layers.file, layers.command_line)
    return Resolved(replace(config, backbone=with_weights(config.backbone)), choices, listing)


def _suits_recipe(key: str) -> bool:
    """Whether a choice for one's own images replaces a recipe's setting: not the data set and its augmentation."""
    return key.startswith(("backbone.", "training.", "algorithm."))
