"""From what a user asked for to a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from npmatch.compare.plan import Plan
from npmatch.compare.variants import Variant, parse_variant
from npmatch.config import parse_overrides
from npmatch.resolution import Overrides
from npmatch.types import NPMatchError


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
