"""Verbs that train many runs, `compare` and `sweep`, and the list of `recipes` they start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from npmatch.cli.shared import (
    ClusterOption,
    CoresOption,
    DataOption,
    DeviceOption,
    FirstSeedOption,
    IterationsOption,
    JobsOption,
    JsonOption,
    MinutesOption,
    OutOption,
    SeedsOption,
    WordsArgument,
    check_device,
    print_json,
    print_rows,
    recipe_and_settings,
)


def compare(
    words: WordsArgument = None,
    out: OutOption = None,
    algorithms: Annotated[
        str,
        typer.Option("--algorithms", help="all, or names and variants such as probe,fixmatch,npmatch[divergence=kl]"),
    ] = "all",
    seeds: SeedsOption = 3,
    first_seed: FirstSeedOption = 0,
    budget_iterations: IterationsOption = None,
    budget_minutes: MinutesOption = None,
    jobs: JobsOption = None,
    cluster: ClusterOption = None,
    cores: CoresOption = None,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare algorithms over several seeds on equal splits.

    Writes one table and one report. The same command again continues; with more algorithms or seeds it adds to them.
    """
    import npmatch.compare

    recipe, overrides = recipe_and_settings(words)
    out = out or Path("runs") / f"compare-{recipe or 'folder'}"
    rows = npmatch.compare.compare(
        recipe,
        algorithms=algorithms,
        out=out,
        seeds=seeds,
        first_seed=first_seed,
        budget_iterations=budget_iterations,
        budget_minutes=budget_minutes,
        data=data,
        overrides=overrides,
        jobs=jobs,
        device=check_device(device),
        cluster=cluster,
        cores=cores,
    )
    print_rows(rows, out, as_json)


def sweep(
    words: WordsArgument,
    out: OutOption = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="Name of the algorithm, a variant of it, or package.module:Class.")
    ] = "npmatch",
    seeds: SeedsOption = 3,
    first_seed: FirstSeedOption = 0,
    budget_iterations: IterationsOption = None,
    budget_minutes: MinutesOption = None,
    jobs: JobsOption = None,
    cluster: ClusterOption = None,
    cores: CoresOption = None,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train with several values of one configuration key.

    For example algorithm.samples=1,5,10. Writes a table, and a report with a figure of the error against the key.
    """
    import npmatch.compare

    recipe, overrides = recipe_and_settings(words)
    key, values, others = npmatch.compare.parse_sweep(overrides)
    out = out or Path("runs") / f"sweep-{recipe or 'folder'}-{key}"
    rows = npmatch.compare.sweep(
        recipe,
        key=key,
        values=values,
        algorithm=algorithm,
        out=out,
        seeds=seeds,
        first_seed=first_seed,
        budget_iterations=budget_iterations,
        budget_minutes=budget_minutes,
        data=data,
        overrides=others,
        jobs=jobs,
        device=check_device(device),
        cluster=cluster,
        cores=cores,
    )
    print_rows(rows, out, as_json, heading=key)


def recipes(as_json: JsonOption = False) -> None:
    """List the recipes, with the paper's error for each."""
    from npmatch.config.recipes import RECIPES

    if as_json:
        rows = [
            {"name": r.name, "about": r.about, "paper_error": r.paper_error, "settings": r.settings}
            for r in RECIPES.values()
        ]
        print_json({"recipes": rows})
        return
    table = Table("recipe", "what", "NP-Match in the paper")
    for recipe in RECIPES.values():
        mean, deviation = recipe.paper_error.get("npmatch", (None, None))
        cell = "" if mean is None else f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}") + " %"
        table.add_row(recipe.name, recipe.about, cell)
    Console().print(table)
