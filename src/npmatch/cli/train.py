"""`npmatch train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from npmatch.cli.shared import DataOption, DeviceOption, JsonOption, check_device, print_json, score_table
from npmatch.errors import NPMatchError


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE] [KEY=VALUE]...", help="For example: digits-40 seed=1"),
    ] = None,
    data: DataOption = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", help="A name, or package.module:Class. Default: npmatch.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder; default runs/<recipe>-….")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the split and of every draw.")] = None,
    device: DeviceOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in --out stopped.")] = False,
    resume_from: Annotated[
        Path | None,
        typer.Option("--resume-from", help="A new run from this run's weights, with the labels given since."),
    ] = None,
    allow_change: Annotated[
        bool, typer.Option("--allow-change", help="With --resume: go on with other settings or data all the same.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Train for about this long: the number of steps is measured.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="A YAML file of configuration.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only warnings and the result.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train on a recipe's data or your own images."""
    from npmatch.distributed.ranks import is_first
    from npmatch.runs.fit import fit

    plain = [word for word in words or [] if "=" not in word]
    if len(plain) > 1:
        raise NPMatchError(f"one recipe at a time, not {' and '.join(plain)}; settings are written key=value")
    run = fit(
        plain[0] if plain else None,
        data=data,
        algorithm=algorithm,
        out=out,
        seed=seed,
        device=check_device(device),
        resume=resume,
        resume_from=resume_from,
        allow_change=allow_change,
        config_file=config,
        overrides=[word for word in words or [] if "=" in word],
        minutes=minutes,
        quiet=quiet or as_json,
    )
    if not is_first():
        return
    if as_json:
        print_json({"run": str(run.folder), **run.scores})
        return
    console = Console()
    if "error" in run.scores:
        console.print(score_table(run.scores))
        console.print(Text(f"report: {run.folder / 'report.html'}"), soft_wrap=True)
    console.print(Text(f"model:  {run.folder}"), soft_wrap=True)
