"""Which runs a comparison consists of. OUT/compare.json holds it: what is there may grow, never change."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from npmatch.compare.variants import Variant
from npmatch.config import Config
from npmatch.files import write_atomically
from npmatch.recipes import RECIPES
from npmatch.resolution import resolve_config
from npmatch.types import NPMatchError

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
