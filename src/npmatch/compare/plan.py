"""The plan of a comparison: every variant with every seed, under equal settings.

OUT/compare.json stores it. A later call may add variants and seeds to it, and change nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from npmatch.baselines import BASELINES
from npmatch.compare.variants import ROOT_KEYS, Variant, value_as_text
from npmatch.config.recipes import RECIPES
from npmatch.config.resolve import Overrides, resolve_config
from npmatch.config.tree import Config, parse_overrides
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically

FORMAT = 1  # of compare.json
MEASURED = "calibrated"  # key of `measured_iterations` in compare.json
ITERATIONS, EVAL_EVERY = "training.iterations", "training.eval_every"
EVALUATIONS = 10  # during a run with a budget, so that its curve has points
NOT_SETTINGS = {  # keys that a comparison sets itself, and what to use instead
    "seed": "use --seeds and --first-seed",
    "algorithm.name": "use --algorithms",
    "recipe": "name the recipe without a key",
}
FIXED = ("recipe", "swept", "settings", "budget_iterations", "budget_minutes")  # fields a later call must not change


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison: every variant with every seed."""

    recipe: str | None
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    settings: dict[str, str] = field(default_factory=dict)  # of all runs
    budget_iterations: int | None = None
    budget_minutes: float | None = None
    swept: str | None = None  # in a sweep, the key whose values are compared
    measured_iterations: dict[str, int] = field(default_factory=dict)  # variant → steps that take budget_minutes

    def runs(self) -> Iterator[tuple[Variant, int]]:
        """All runs, seed by seed, so that after an early stop every method has equally many."""
        return ((variant, seed) for seed in self.seeds for variant in self.variants)

    def name(self, variant: Variant) -> str:
        """The name of a variant in tables and figures; in a sweep, the value of the swept key."""
        return variant.label if self.swept is None else dict(variant.settings)[self.swept]

    def run_settings(self, variant: Variant) -> dict[str, str]:
        """The settings of a variant's runs: those of all runs, its own, and its number of steps."""
        if variant.is_baseline:  # the algorithms' own settings do not concern it, and it takes no steps
            shared = {key: value for key, value in self.settings.items() if not _is_of_algorithm(key)}
            return {**shared, **dict(variant.settings)}
        settings = {**self.settings, **dict(variant.settings)}
        iterations = self.measured_iterations.get(variant.label, self.budget_iterations)
        if iterations is None:
            return settings
        return {EVAL_EVERY: str(max(1, iterations // EVALUATIONS)), **settings, ITERATIONS: str(iterations)}

    def config(self, variant: Variant, seed: int | None = None) -> Config:
        """The configuration of a variant's run; by default that of the first seed."""
        seed = self.seeds[0] if seed is None else seed
        return resolve_config(
            self.recipe, algorithm=variant.trained_algorithm, seed=seed, overrides=self.run_settings(variant)
        )

    def iterations(self, variant: Variant) -> int | None:
        """The number of training steps of a variant's runs; None for a baseline."""
        return None if variant.is_baseline else self.config(variant).training.iterations

    def paper_error(self, variant: Variant) -> tuple[float, float | None] | None:
        """The paper's error and its standard deviation for this task, network and variant; None if it reports none."""
        if self.recipe is None or variant.is_baseline:
            return None
        ours = self.config(variant)
        preset = {} if ours.preset is None else {"preset": ours.preset}
        plain = resolve_config(self.recipe, algorithm=variant.algorithm, overrides=preset)
        same_task = (ours.data.source, ours.data.labels) == (plain.data.source, plain.data.labels)
        if not same_task or ours.data.foreign_share or ours.backbone != plain.backbone:
            return None
        own, default = dataclasses.asdict(ours.algorithm), dataclasses.asdict(plain.algorithm)
        changed = [f"/{own[key]}" for key in own if own[key] != default[key]]
        return RECIPES[self.recipe].paper_error.get("".join([variant.algorithm, *changed]))

    def check(self) -> None:
        """Refuses, before anything is trained, a setting that is unknown or contradicts another."""
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
                config = self.config(variant)
            except NPMatchError as error:
                is_for_all = any(key.startswith("algorithm.") for key in self.settings)
                hint = " (a setting of one method only is written NAME[key=value])" if is_for_all else ""
                raise NPMatchError(f"{variant.label}: {error}{hint}") from error
            if variant.is_baseline and not config.backbone.pretrained:
                raise NPMatchError(
                    f"{variant.label}: needs pretrained weights, and these runs start from random ones; set "
                    "backbone.pretrained=true or backbone.weights=FILE, or leave it out of --algorithms"
                )

    def with_baselines(self) -> Plan:
        """The plan with all baselines before its variants, if its runs start from pretrained weights."""
        baselines = [Variant(name) for name in BASELINES]
        if not self.config(baselines[0]).backbone.pretrained:
            return self
        return replace(self, variants=tuple(dict.fromkeys([*baselines, *self.variants])))

    def extended(self, other: Plan) -> Plan:
        """The runs of both plans in one; it is an error, which names the key, if they differ in anything else."""
        changed = list(_differences(self, other))
        if changed:
            raise NPMatchError(f"was started with other settings ({'; '.join(changed)})")
        return replace(
            self,
            variants=tuple(dict.fromkeys([*self.variants, *other.variants])),
            seeds=tuple(sorted({*self.seeds, *other.seeds})),
            measured_iterations={**other.measured_iterations, **self.measured_iterations},
        )

    def save(self, path: Path) -> None:
        """Writes the plan as JSON, atomically."""
        content = dataclasses.asdict(self)
        content["variants"] = [{"algorithm": v.algorithm, "settings": dict(v.settings)} for v in self.variants]
        content[MEASURED] = content.pop("measured_iterations")
        text = json.dumps({"format": FORMAT, **content}, indent=2, ensure_ascii=False) + "\n"
        write_atomically(path, text.encode())

    @staticmethod
    def load(path: Path) -> Plan:
        """The plan in a file that `save` wrote."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise NPMatchError(f"{path}: written by another version of npmatch; choose another --out")
            variants = tuple(Variant(v["algorithm"], tuple(v["settings"].items())) for v in content.pop("variants"))
            seeds, measured = tuple(content.pop("seeds")), content.pop(MEASURED, {})
            return Plan(variants=variants, seeds=seeds, measured_iterations=measured, **content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"  # repr would contain the whole of a file that is not text
            raise NPMatchError(f"{path}: not a comparison written by npmatch ({reason})") from error


def _is_of_algorithm(key: str) -> bool:
    return key.startswith("algorithm.") or key in ROOT_KEYS


def _differences(old: Plan, new: Plan) -> Iterator[str]:
    """'key: old → new' for everything that a later call must not change."""

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
    """The plan of every variant with every seed; an invalid argument is an error."""
    if seeds < 1:
        raise NPMatchError(f"seeds={seeds}: at least one is needed")
    if first_seed < 0:
        raise NPMatchError(f"first-seed={first_seed}: a seed is 0 or more")
    if budget_iterations is not None and budget_minutes is not None:
        raise NPMatchError("give a budget in iterations or in minutes, not both")
    if budget_iterations is not None and budget_iterations < 1:
        raise NPMatchError(f"budget-iterations={budget_iterations}: at least one step is needed")
    if budget_minutes is not None and not 0 < budget_minutes < math.inf:
        raise NPMatchError(f"budget-minutes={budget_minutes}: give a time above 0")
    settings = settings_as_text(overrides)
    if data is not None:
        settings = {"data.root": str(data), **settings}
    if swept in settings:
        raise NPMatchError(f"{swept}: is the key of the sweep; give it once")
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
    """Overrides with their values as typed on a command line."""
    if not isinstance(overrides, Mapping):
        return parse_overrides(overrides)
    return {key: value_as_text(value) for key, value in overrides.items()}
