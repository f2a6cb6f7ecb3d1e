"""Which runs a comparison consists of. OUT/compare.json holds it: what is there may grow, never change."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from npmatch.algorithms import ALGORITHMS, find_algorithm
from npmatch.config.recipes import RECIPES
from npmatch.config.resolve import Overrides, resolve_config
from npmatch.config.tree import Config, parse_overrides
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically

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


FORMAT = 1  # of compare.json
ITERATIONS, EVAL_EVERY = "training.iterations", "training.eval_every"
EVALUATIONS = 10  # along a run of a given budget, so that its curve has points
NOT_SETTINGS = {
    "seed": "use --seeds and --first-seed",
    "algorithm.name": "use --algorithms",
    "recipe": "name the recipe without a key",
}
FIXED = ("recipe", "swept", "settings", "budget_iterations", "budget_minutes")  # what a second call may not change


@dataclass(frozen=True)
class Plan:
    """Every variant with every seed, all else equal."""

    recipe: str | None
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    settings: dict[str, str] = field(default_factory=dict)  # of all runs
    budget_iterations: int | None = None
    budget_minutes: float | None = None
    swept: str | None = None  # the key whose values are compared, where that is all the variants differ in
    calibrated: dict[str, int] = field(default_factory=dict)  # variant → iterations that fill budget_minutes

    def runs(self) -> Iterator[tuple[Variant, int]]:
        """Seed by seed, so that an early stop leaves all methods with as many runs."""
        return ((variant, seed) for seed in self.seeds for variant in self.variants)

    def name(self, variant: Variant) -> str:
        """What tables and figures call a variant: in a sweep its value is enough."""
        return variant.label if self.swept is None else dict(variant.settings)[self.swept]

    def run_settings(self, variant: Variant) -> dict[str, str]:
        """The configuration keys of a variant's runs; its own win over everybody's."""
        own = {**self.settings, **dict(variant.settings)}
        iterations = self.calibrated.get(variant.label, self.budget_iterations)
        if iterations is None:
            return own
        return {EVAL_EVERY: str(max(1, iterations // EVALUATIONS)), **own, ITERATIONS: str(iterations)}

    def config(self, variant: Variant, seed: int | None = None) -> Config:
        """What a run of the variant is decided by."""
        seed = self.seeds[0] if seed is None else seed
        return resolve_config(self.recipe, algorithm=variant.algorithm, seed=seed, overrides=self.run_settings(variant))

    def paper_error(self, variant: Variant) -> tuple[float, float | None] | None:
        """The paper's error and its deviation for this recipe, data and network, where it reports one."""
        if self.recipe is None:
            return None
        ours = self.config(variant)
        reading = {} if ours.preset is None else {"preset": ours.preset}
        plain = resolve_config(self.recipe, algorithm=variant.algorithm, overrides=reading)
        same_task = (ours.data.source, ours.data.labels) == (plain.data.source, plain.data.labels)
        if not same_task or ours.data.foreign_share or ours.backbone != plain.backbone:
            return None
        own, default = dataclasses.asdict(ours.algorithm), dataclasses.asdict(plain.algorithm)
        changed = [f"/{own[key]}" for key in own if own[key] != default[key]]
        return RECIPES[self.recipe].paper_error.get("".join([variant.algorithm, *changed]))

    def check(self) -> None:
        """Fails, before anything is trained, where a setting is unknown or contradicts another."""
        if not self.variants or not self.seeds:
            raise NPMatchError("nothing to compare: name at least one algorithm and one seed")
        folders: dict[str, Variant] = {}
        for variant in self.variants:
            settings = {**self.settings, **dict(variant.settings)}
            if other := folders.get(variant.slug):
                raise NPMatchError(f"{other.label} and {variant.label} would share the folder {variant.slug}")
            folders[variant.slug] = variant
            if wrong := NOT_SETTINGS.keys() & settings.keys():
                raise NPMatchError("; ".join(f"{key} cannot be set here: {NOT_SETTINGS[key]}" for key in sorted(wrong)))
            if ITERATIONS in settings and (self.budget_iterations or self.budget_minutes):
                raise NPMatchError(f"give a budget or {ITERATIONS}=…, not both")
            try:
                self.config(variant)
            except NPMatchError as error:
                shared = any(key.startswith("algorithm.") for key in self.settings)
                hint = " (a setting of one method alone is written NAME[key=value])" if shared else ""
                raise NPMatchError(f"{variant.label}: {error}{hint}") from error

    def extended(self, other: Plan) -> Plan:
        """Both plans' runs as one; fails, naming the difference, where they differ in more than runs."""
        changed = list(_differences(self, other))
        if changed:
            raise NPMatchError(f"was started with other settings ({'; '.join(changed)})")
        return replace(
            self,
            variants=tuple(dict.fromkeys([*self.variants, *other.variants])),
            seeds=tuple(sorted({*self.seeds, *other.seeds})),
            calibrated={**other.calibrated, **self.calibrated},
        )

    def save(self, path: Path) -> None:
        """JSON, written whole or not at all."""
        content = dataclasses.asdict(self)
        content["variants"] = [{"algorithm": v.algorithm, "settings": dict(v.settings)} for v in self.variants]
        text = json.dumps({"format": FORMAT, **content}, indent=2, ensure_ascii=False) + "\n"
        write_atomically(path, text.encode())

    @staticmethod
    def load(path: Path) -> Plan:
        """What `save` wrote."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise NPMatchError(f"{path}: written by another version of npmatch; choose another --out")
            variants = tuple(Variant(v["algorithm"], tuple(v["settings"].items())) for v in content.pop("variants"))
            return Plan(variants=variants, seeds=tuple(content.pop("seeds")), **content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"{type(error).__name__}: {error}"  # not repr, which holds all of a file that is no text
            raise NPMatchError(f"{path}: not a comparison written by npmatch ({what})") from error


def _differences(old: Plan, new: Plan) -> Iterator[str]:
    """'key: old → new' for what a second call may not change."""

    def flat(plan: Plan) -> dict[str, Any]:
        fixed = {key: getattr(plan, key) for key in FIXED}
        settings: dict[str, str] = fixed.pop("settings")
        if plan.swept is not None:
            fixed["algorithm"] = plan.variants[0].without(plan.swept).label
        return {key.replace("_", "-"): value for key, value in fixed.items()} | settings

    before, after = flat(old), flat(new)
    for key in {**before, **after}:
        if before.get(key) != after.get(key):
            yield f"{key}: {before.get(key)} → {after.get(key)}"


def make_plan(
    recipe: str | None,
    variants: Sequence[Variant],
    *,
    seeds: int,
    first_seed: int,
    budget_iterations: int | None,
    budget_minutes: float | None,
    data: str | Path | None,
    overrides: Overrides,
    swept: str | None = None,
) -> Plan:
    """The plan of every variant with every seed, or one line on what is wrong with it."""
    if seeds < 1:
        raise NPMatchError(f"seeds={seeds}: at least one is needed")
    if first_seed < 0:
        raise NPMatchError(f"first-seed={first_seed}: a seed is 0 or more")
    if budget_iterations is not None and budget_minutes is not None:
        raise NPMatchError("give a budget in iterations or in minutes, not both")
    if budget_iterations is not None and budget_iterations < 1:
        raise NPMatchError(f"budget-iterations={budget_iterations}: at least one step is needed")
    if budget_minutes is not None and not budget_minutes > 0:
        raise NPMatchError(f"budget-minutes={budget_minutes}: more than none is needed")
    settings = settings_as_text(overrides)
    if data is not None:
        settings = {"data.root": str(data), **settings}
    if swept in settings:
        raise NPMatchError(f"{swept} is what is swept: give it once")
    return Plan(
        recipe=recipe,
        variants=tuple(variants),
        seeds=tuple(range(first_seed, first_seed + seeds)),
        settings=settings,
        budget_iterations=budget_iterations,
        budget_minutes=budget_minutes,
        swept=swept,
    )


def settings_as_text(overrides: Overrides) -> dict[str, str]:
    """Configuration keys with values as a command line has them."""
    if not isinstance(overrides, Mapping):
        return parse_overrides(overrides)
    return {key: value_as_text(value) for key, value in overrides.items()}


def value_as_text(value: object) -> str:
    """A value as it is typed: none, 1,2,3, 0.5."""
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return "none" if value is None else str(value)


def parse_sweep(words: Iterable[str]) -> tuple[str, list[str], list[str]]:
    """`key=value` words as the one key that has several values, those values, and the other words."""
    words = list(words)
    several = [word for word in words if "," in word.partition("=")[2]]
    if len(several) != 1:
        found = f"here are {len(several)}: {' and '.join(several)}" if several else "here is none"
        raise NPMatchError(f"a sweep has exactly one key with several values, as in algorithm.samples=1,5,10; {found}")
    key, _, values = several[0].partition("=")
    return key, values.split(","), [word for word in words if word != several[0]]


def sweep_variants(algorithm: str, key: str, values: Sequence[object]) -> list[Variant]:
    """The algorithm with each of the values."""
    texts = [value_as_text(value).strip() for value in values]
    if len(set(texts)) < 2 or not all(texts):
        raise NPMatchError(f"{key}={','.join(texts)}: a sweep needs two different values or more")
    base = parse_variant(algorithm)
    return [base.with_setting(key, text) for text in dict.fromkeys(texts)]
