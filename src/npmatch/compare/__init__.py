"""Comparison of many methods over many seeds, and sweeps over the values of one key.

rows = compare("digits-40", algorithms="supervised,npmatch,npmatch[divergence=kl]", seeds=3, out="runs/compare")
rows = compare(data="photos", algorithms="probe,spreading,flexmatch,npmatch", seeds=3, out="runs/photos")
rows = sweep("digits-40", key="algorithm.samples", values=[1, 5, 10], seeds=3, out="runs/samples")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from npmatch.compare.engine import carry_out
from npmatch.compare.plan import Plan, make_plan
from npmatch.compare.variants import Variant, names_all, parse_sweep, parse_variant, parse_variants, sweep_variants
from npmatch.config.resolve import Overrides
from npmatch.errors import StoppedError

Rows = list[dict[str, Any]]


def compare(
    recipe: str | None = None,
    *,
    algorithms: str | Iterable[str] = "all",
    out: str | Path,
    seeds: int = 3,
    first_seed: int = 0,
    budget_iterations: int | None = None,
    budget_minutes: float | None = None,
    data: str | Path | None = None,
    overrides: Overrides = (),
    jobs: int | None = None,
    device: str | None = None,
    quiet: bool = False,
    cluster: str | None = None,
    cores: int | None = None,
) -> Rows:
    """Trains every algorithm with every seed on equal splits; returns the rows of OUT/table.csv.

    A variant is written npmatch[key=value;key=value]. If runs start from pretrained weights, `all` includes the
    baselines. A run that fails is counted in its row's `failed`, and `note` gives the reason. Runs that `out` holds
    already are not trained again; a later call may add algorithms and seeds.

    `jobs` runs are trained at the same time by this machine, by default one, or by the machines of a `cluster`,
    "ray:ADDRESS" or "slurm:PARTITION", by default as many as it has room for, each with `cores` cores.
    """
    text = algorithms if isinstance(algorithms, str) else ",".join(algorithms)
    plan = make_plan(
        recipe,
        parse_variants(text),
        seeds=seeds,
        first_seed=first_seed,
        budget_iterations=budget_iterations,
        budget_minutes=budget_minutes,
        data=data,
        overrides=overrides,
    )
    if names_all(text):
        plan = plan.with_baselines()
    return carry_out(plan, Path(out), jobs, device, quiet, cluster, cores).rows()


def sweep(
    recipe: str | None = None,
    *,
    key: str,
    values: Sequence[object],
    out: str | Path,
    algorithm: str = "npmatch",
    seeds: int = 3,
    first_seed: int = 0,
    budget_iterations: int | None = None,
    budget_minutes: float | None = None,
    data: str | Path | None = None,
    overrides: Overrides = (),
    jobs: int | None = None,
    device: str | None = None,
    quiet: bool = False,
    cluster: str | None = None,
    cores: int | None = None,
) -> Rows:
    """Trains one algorithm with every value of one key and every seed; returns the rows of OUT/table.csv.

    `jobs`, `cluster` and `cores` are those of `compare`.
    """
    plan = make_plan(
        recipe,
        sweep_variants(algorithm, key, values),
        seeds=seeds,
        first_seed=first_seed,
        budget_iterations=budget_iterations,
        budget_minutes=budget_minutes,
        data=data,
        overrides=overrides,
        swept=key,
    )
    return carry_out(plan, Path(out), jobs, device, quiet, cluster, cores).rows()


__all__ = [
    "Plan",
    "StoppedError",
    "Variant",
    "carry_out",
    "compare",
    "parse_sweep",
    "parse_variant",
    "parse_variants",
    "sweep",
]
