"""A variant: an algorithm with settings of its own, written `npmatch` or `npmatch[divergence=kl;alpha=0.5]`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from npmatch.algorithms import ALGORITHMS, find_algorithm
from npmatch.types import NPMatchError

ROOT_KEYS = ("preset",)  # keys without a group that a variant may set; every other short key is the algorithm's own
LONGEST_SLUG = 100
WRITTEN = re.compile(r"(?P<name>[^\[\];=]+)(?:\[(?P<settings>[^\[\]]*)\])?")


@dataclass(frozen=True)
class Variant:
    """An algorithm and what is set for it alone; equal ones have equal settings, whatever their order."""

    algorithm: str
    settings: tuple[tuple[str, str], ...] = ()  # dotted key, value as typed; sorted by key

    @property
    def label(self) -> str:
        """As a user writes it."""
        written = ";".join(f"{key.removeprefix('algorithm.')}={value}" for key, value in self.settings)
        return f"{self.algorithm}[{written}]" if written else self.algorithm

    @property
    def slug(self) -> str:
        """A name for its folder: the label in letters, digits, dots and dashes."""
        slug = re.sub(r"[^\w.-]", "_", re.sub(r"[\[=;:]", "-", self.label.rstrip("]")))
        digest = hashlib.sha256(self.label.encode()).hexdigest()[:8]
        return slug if len(slug) <= LONGEST_SLUG else f"{slug[: LONGEST_SLUG - 9]}-{digest}"

    def with_setting(self, key: str, value: str) -> Variant:
        """The same with one more setting, or another value of it."""
        return Variant(self.algorithm, tuple(sorted({**dict(self.settings), key: value}.items())))

    def without(self, key: str) -> Variant:
        """The same less one setting."""
        return Variant(self.algorithm, tuple((k, value) for k, value in self.settings if k != key))


def parse_variants(text: str) -> list[Variant]:
    """`all`, or names and variants separated by commas; commas inside brackets belong to a value."""
    found: list[Variant] = []
    for word in re.split(r",(?![^\[\]]*\])", text):
        if word.strip() == "all":
            found += [Variant(name) for name in ALGORITHMS]
        else:
            found.append(parse_variant(word))
    return list(dict.fromkeys(found))


def parse_variant(text: str) -> Variant:
    """One name, or name[key=value;…]; a key without a dot is the algorithm's own."""
    match = WRITTEN.fullmatch(text.strip())
    if match is None:
        raise NPMatchError(f"'{text.strip()}' is not of the form NAME or NAME[key=value;key=value]")
    name = match["name"].strip()
    find_algorithm(name)
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
