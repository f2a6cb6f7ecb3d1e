"""One typed configuration tree. Layers: defaults < recipe < preset < file < command line; an unknown key is an error.

A layer is a flat mapping from dotted keys to values (`{"training.iterations": 200}`). Layers, and differences between
two configurations, thus use the names that a user types.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pydantic
import yaml

from npmatch.algorithms import Algorithm, find_algorithm
from npmatch.augment import AugmentConfig
from npmatch.backbones import BackboneConfig
from npmatch.config.paths import PATH_KEYS, same_path
from npmatch.data.config import DataConfig
from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.files import read_regular, write_atomically
from npmatch.training.config import TrainingConfig

Layer = Mapping[str, Any]

MAX_CONFIG_BYTES = 2**18  # of a YAML file; a hundred times the whole tree
MAX_SHOWN = 80  # characters of a value in an error message

# Keys whose value may name Python code, `package.module:name`.
CODE_KEYS = ("algorithm.name", "backbone.name", "augment.policy", "data.source", "data.foreign")


@dataclass(frozen=True)
class Config:
    """The complete configuration of a run."""

    name: str = "npmatch"  # of the algorithm; its key is algorithm.name
    algorithm: Any = None  # an instance of that algorithm's own Config
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seed: int = 0
    recipe: str | None = None
    preset: str | None = None

    def flat(self) -> dict[str, Any]:
        """Every dotted key with its value, as one layer."""
        flat: dict[str, Any] = {"recipe": self.recipe, "preset": self.preset, "seed": self.seed}
        flat["algorithm.name"] = self.name
        for group in ("algorithm", "data", "augment", "backbone", "training"):
            flat |= {f"{group}.{key}": value for key, value in dataclasses.asdict(getattr(self, group)).items()}
        return flat

    def nested(self) -> dict[str, Any]:
        """The tree as nested dictionaries of plain values, for YAML and JSON."""
        tree: dict[str, Any] = {}
        for key, value in self.flat().items():
            group, _, leaf = key.rpartition(".")
            value = list(value) if isinstance(value, tuple) else value
            (tree.setdefault(group, {}) if group else tree)[leaf] = value
        return tree


def make_config(*layers: Layer) -> Config:
    """The configuration of these layers, the recipe's first; later layers win, and values may be text."""
    given = {key: value for layer in layers for key, value in layer.items()}
    algorithm = find_algorithm(str(given.get("algorithm.name", Config.name)))
    preset = given.get("preset")
    if preset is not None:
        if not isinstance(preset, str) or preset not in algorithm.presets:  # a file may hold a list there
            raise NoSuchChoiceError("preset", _shown(preset), list(algorithm.presets))
        after_recipe = {key: value for layer in layers[1:] for key, value in layer.items()}
        own = {f"algorithm.{key}" for key in _hints(algorithm.Config)}
        settings = algorithm.presets[preset].items()
        chosen = {key: value for key, value in settings if key in own or not key.startswith("algorithm.")}
        given = {**given, **chosen, **after_recipe}
    groups = {
        "algorithm": algorithm.Config,
        "data": DataConfig,
        "augment": AugmentConfig,
        "backbone": BackboneConfig,
        "training": TrainingConfig,
    }
    types = {f"{group}.{key}": hint for group, cls in groups.items() for key, hint in _hints(cls).items()}
    types |= {"algorithm.name": str, "seed": int, "recipe": str | None, "preset": str | None}
    values = {key: _typed(key, value, types) for key, value in given.items()}
    _check_finite(values, algorithm)
    name = values.pop("algorithm.name", Config.name)  # it chose the group `algorithm`, and is not in it
    root = {key: values[key] for key in ("seed", "recipe", "preset") if key in values}
    return Config(name, **root, **{group: cls(**_leaves(values, group)) for group, cls in groups.items()})


def _hints(cls: type) -> dict[str, Any]:
    """The type of each field of a dataclass, with its bounds."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _leaves(layer: Layer, group: str) -> dict[str, Any]:
    """The keys of one group of the tree, without the group's name."""
    return {key.removeprefix(f"{group}."): value for key, value in layer.items() if key.startswith(f"{group}.")}


def _check_finite(values: Layer, algorithm: type[Algorithm]) -> None:
    """Refuses inf and nan in a user's `float` without bounds, unless it is the default, which may mean no limit."""
    defaults = {f"algorithm.{field.name}": field.default for field in dataclasses.fields(algorithm.Config)}
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value) and value != defaults.get(key):
            raise NPMatchError(f"{key}={value}: must be a finite number")


def _typed(key: str, value: Any, types: Mapping[str, Any]) -> Any:
    """The value converted to its key's type and checked against its bounds; an error says what the key takes."""
    if key not in types:
        raise NoSuchChoiceError("key", _shown(key), sorted(types))
    hint = types[key]
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    parts = value
    if isinstance(value, str):  # as typed on a command line
        if value.lower() in ("none", "null") and type(None) in get_args(plain):
            return None
        if get_origin(plain) is tuple:
            parts = value.split(",")
    try:
        return pydantic.TypeAdapter(hint).validate_python(parts)
    except pydantic.ValidationError as error:
        problems = [one["msg"] for one in error.errors() if one["type"] != "none_required"]
        alternatives = problems if get_origin(plain) in (Union, UnionType) else problems[:1]
        problem = ", or ".join(alternatives).replace("Input should", "must")
        raise NPMatchError(f"{key}={_shown(value)}: {problem[0].lower() + problem[1:]}") from None


def _shown(value: Any) -> str:
    """A value in an error message, cut to a length that can be read."""
    try:
        text = str(value)
    except ValueError:  # an integer of more digits than Python converts
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def parse_overrides(tokens: Iterable[str]) -> dict[str, str]:
    """`key=value` tokens as a layer."""
    layer = {}
    for token in tokens:
        key, equals, value = token.partition("=")
        if not equals or not key:
            raise NPMatchError(f"'{token}' is not of the form key=value, for example training.iterations=200")
        layer[key] = value
    return layer


class PlainLoader(yaml.SafeLoader):
    """Reads YAML without aliases: through them a file of 500 bytes could ask for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuses `*name`, which merge keys (`<<: *name`) need as well."""
        if self.check_event(yaml.AliasEvent):  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"the alias *{self.peek_event().anchor}: write the value out")  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)


def read_config_file(path: Path) -> dict[str, Any]:
    """A YAML file as a layer."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise NPMatchError(f"{path}: is no configuration, which has at most {MAX_CONFIG_BYTES:,} bytes")
        tree = yaml.load(read_regular(path).decode(), PlainLoader) or {}
        if not isinstance(tree, dict):
            raise NPMatchError(f"{path}: expected keys and values, found {type(tree).__name__}")
        return flatten(tree)
    except OSError as error:
        raise NPMatchError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the latter two: not UTF-8, nested too deeply
        raise NPMatchError(f"{path}: not valid YAML ({str(error).splitlines()[0]})") from error


def config_in_file(layer: Layer, path: Path) -> Config:
    """The configuration of a layer that was read from `path`; errors name the file."""
    try:
        return make_config({}, layer)
    except NPMatchError as error:
        raise NPMatchError(f"{path}: {error}") from error


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of keys and groups of keys as a layer."""
    layer: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            layer |= {f"{key}.{leaf}": v for leaf, v in value.items()}
        else:
            layer[str(key)] = value
    return layer


def write_config(config: Config, path: Path) -> None:
    """Writes the whole tree as YAML."""
    write_atomically(path, yaml.safe_dump(config.nested(), sort_keys=False, allow_unicode=True).encode())


def differences(old: Config, new: Config, ignore: Iterable[str] = ()) -> list[str]:
    """'key: old → new' for every key that differs."""
    before, after = old.flat(), new.flat()

    def differs(key: str) -> bool:
        one, other = before.get(key), after.get(key)
        return not same_path(one, other) if key in PATH_KEYS else one != other

    keys = [k for k in {**before, **after} if k not in set(ignore) and differs(k)]
    return [f"{k}: {before.get(k)} → {after.get(k)}" for k in keys]
