"""`npmatch train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from npmatch.cli.shared import (
    DataOption,
    DeviceOption,
    JsonOption,
    check_device,
    print_json,
    print_line,
    recipe_and_settings,
    score_table,
)


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...", help="Recipe and configuration overrides, for example: digits-40 seed=1"
        ),
    ] = None,
    data: DataOption = None,
    algorithm: Annotated[
        str | None,
        typer.Option("--algorithm", help="Name of the algorithm, or package.module:Class; default: npmatch."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; default: runs/<recipe>-<algorithm>-<seed>.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the data split and of every random draw.")] = None,
    device: DeviceOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out from its last checkpoint.")] = False,
    resume_from: Annotated[
        Path | None,
        typer.Option("--resume-from", help="Start a new run from this run's weights, with the labels added since."),
    ] = None,
    allow_change: Annotated[
        bool, typer.Option("--allow-change", help="With --resume: continue even if settings or data have changed.")
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", help="Minutes that the whole command may take; sets the number of training steps."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file with configuration keys.")] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show no progress, only warnings and the final scores.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train on a recipe's data set or on your own images."""
    from npmatch.distributed.ranks import is_rank_zero
    from npmatch.runs.fit import fit
    from npmatch.runs.folder import RunFolder

    recipe, overrides = recipe_and_settings(words or [])
    run = fit(
        recipe,
        data=data,
        algorithm=algorithm,
        out=out,
        seed=seed,
        device=check_device(device),
        resume=resume,
        resume_from=resume_from,
        allow_change=allow_change,
        config_file=config,
        overrides=overrides,
        minutes=minutes,
        quiet=quiet or as_json,
    )
    if not is_rank_zero():
        return
    if as_json:
        print_json({"run": str(run.folder), **run.scores})
        return
    if "error" in run.scores:
        Console().print(score_table(run.scores))
    if RunFolder(run.folder).report.is_file():
        print_line(f"report: {RunFolder(run.folder).report}")
    print_line(f"model:  {run.folder}")
