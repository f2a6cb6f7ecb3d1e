"""Variants of algorithms and baselines, and how a user writes them: `npmatch`, `npmatch[divergence=kl;samples=5]`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from npmatch.algorithms import ALGORITHMS, find_algorithm
from npmatch.baselines import BASELINES
from npmatch.errors import NoSuchChoiceError, NPMatchError

ROOT_KEYS = ("preset",)  # keys without a dot that are not the algorithm's own
LONGEST_SLUG = 100
VARIANT = re.compile(r"(?P<name>[^\[\];=]+)(?:\[(?P<settings>[^\[\]]*)\])?")  # name[key=value;key=value]


@dataclass(frozen=True)
class Variant:
    """An algorithm, or a baseline, with settings of its own."""

    algorithm: str  # or the name of a baseline
    settings: tuple[tuple[str, str], ...] = ()  # dotted key and value as typed; sorted, so that equal variants compare

    @property
    def is_baseline(self) -> bool:
        """Whether it is a baseline, which trains nothing."""
        return self.algorithm in BASELINES

    @property
    def trained_algorithm(self) -> str:
        """The algorithm whose configuration it has; for a baseline the plainest one, as it shares data and network."""
        return "supervised" if self.is_baseline else self.algorithm

    @property
    def label(self) -> str:
        """The variant as a user writes it."""
        settings = ";".join(f"{key.removeprefix('algorithm.')}={value}" for key, value in self.settings)
        return f"{self.algorithm}[{settings}]" if settings else self.algorithm

    @property
    def slug(self) -> str:
        """The name of its folder: the label in letters, digits, dots, dashes and underscores."""
        slug = re.sub(r"[^\w.-]", "_", re.sub(r"[\[=;:]", "-", self.label.rstrip("]")))
        digest = hashlib.sha256(self.label.encode()).hexdigest()[:8]
        return slug if len(slug) <= LONGEST_SLUG else f"{slug[: LONGEST_SLUG - 9]}-{digest}"

    def with_setting(self, key: str, value: str) -> Variant:
        """The variant with one setting added or changed."""
        return Variant(self.algorithm, tuple(sorted({**dict(self.settings), key: value}.items())))

    def without(self, key: str) -> Variant:
        """The variant without one of its settings."""
        return Variant(self.algorithm, tuple((k, value) for k, value in self.settings if k != key))


def parse_variants(text: str) -> list[Variant]:
    """The variants in a text, separated by commas outside of brackets; `all` is every algorithm."""
    variants: list[Variant] = []
    for word in _words(text):
        if word == "all":
            variants += [Variant(name) for name in ALGORITHMS]
        else:
            variants.append(parse_variant(word))
    return list(dict.fromkeys(variants))


def names_all(text: str) -> bool:
    """Whether `all` is among the variants in a text."""
    return "all" in _words(text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in re.split(r",(?![^\[\]]*\])", text)]


def parse_variant(text: str) -> Variant:
    """The variant in a text `name` or `name[key=value;…]`; a key without a dot is the algorithm's own."""
    match = VARIANT.fullmatch(text.strip())
    if match is None:
        raise NPMatchError(f"'{text.strip()}' is not of the form NAME or NAME[key=value;key=value]")
    name = match["name"].strip()
    if ":" in name:
        find_algorithm(name)
    elif name not in {**ALGORITHMS, **BASELINES}:
        raise NoSuchChoiceError("algorithm", name, [*ALGORITHMS, *BASELINES])
    settings: dict[str, str] = {}
    for word in filter(None, (word.strip() for word in (match["settings"] or "").split(";"))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals):
            raise NPMatchError(f"'{word}' in '{text.strip()}' is not of the form key=value")
        key = key if "." in key or key in ROOT_KEYS else f"algorithm.{key}"
        if key in settings:
            raise NPMatchError(f"'{text.strip()}' sets {key} twice")
        settings[key] = value
    return Variant(name, tuple(sorted(settings.items())))


def parse_sweep(overrides: Iterable[str]) -> tuple[str, list[str], list[str]]:
    """The key that has several values among overrides `key=value`, its values, and the other overrides."""
    overrides = list(overrides)
    several = [override for override in overrides if "," in override.partition("=")[2]]
    if len(several) != 1:
        count = f"here are {len(several)}: {' and '.join(several)}" if several else "here is none"
        raise NPMatchError(f"a sweep has exactly one key with several values, as in algorithm.samples=1,5,10; {count}")
    key, _, values = several[0].partition("=")
    return key, values.split(","), [override for override in overrides if override != several[0]]


def sweep_variants(algorithm: str, key: str, values: Sequence[object]) -> list[Variant]:
    """A variant of the algorithm for each value of the key."""
    texts = [value_as_text(value).strip() for value in values]
    if len(set(texts)) < 2 or not all(texts):
        raise NPMatchError(f"{key}={','.join(texts)}: a sweep needs two different values or more")
    base = parse_variant(algorithm)
    return [base.with_setting(key, text) for text in dict.fromkeys(texts)]


def value_as_text(value: object) -> str:
    """A value as typed on a command line: none, 0.5, or 1,2,3 for a list."""
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return "none" if value is None else str(value)
