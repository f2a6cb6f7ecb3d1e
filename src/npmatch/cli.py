"""The command line: verbs → functions. A token containing `=` is a configuration override."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from npmatch.cli_shared import (
    DataOption,
    DeviceOption,
    FirstSeedOption,
    IterationsOption,
    JobsOption,
    JsonOption,
    MinutesOption,
    OutOption,
    RunArgument,
    SeedsOption,
    WordsArgument,
    check_device,
    fail,
    print_json,
    print_rows,
    recipe_and_settings,
    score_table,
    telling_of_a_stop,
)
from npmatch.types import NPMatchError

# Newer versions of typer carry click inside themselves: its exceptions are reached through typer's own names.
UsageProblem: Any = typer.BadParameter.__mro__[2]  # click.ClickException

app = typer.Typer(
    help="From a folder of images of which a few are labelled to a classifier that says how sure it is.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
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
    config: Annotated[Path | None, typer.Option("--config", help="A YAML file of configuration.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only warnings and the result.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train on a recipe's data or your own images."""
    from npmatch.experiment import fit

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
        config_file=config,
        overrides=[word for word in words or [] if "=" in word],
        quiet=quiet or as_json,
    )
    if as_json:
        print_json({"run": str(run.folder), **run.scores})
        return
    console = Console()
    if "error" in run.scores:
        console.print(score_table(run.scores))
        console.print(Text(f"report: {run.folder / 'report.html'}"), soft_wrap=True)
    console.print(Text(f"model:  {run.folder}"), soft_wrap=True)


@app.command()
def evaluate(
    run: RunArgument, data: DataOption = None, device: DeviceOption = None, as_json: JsonOption = False
) -> None:
    """Error, calibration and class-wise figures of a finished run on its test images."""
    from npmatch.experiment import evaluate_run
    from npmatch.metrics import classwise, scores

    found = evaluate_run(run, data, check_device(device))
    result = scores(found.prediction, found.held_out.labels).asdict()
    if as_json:
        print_json(result)
        return
    table = Table("class", "images", "accuracy", "uncertainty (nats)")
    for row in classwise(found.prediction, found.held_out.labels, found.card.class_names):
        table.add_row(Text(row.name), f"{row.n}", f"{row.accuracy:.1%}", f"{row.uncertainty:.3f}")
    console = Console()
    console.print(score_table(result))
    console.print(table)


@app.command()
def predict(
    run: RunArgument,
    paths: Annotated[list[Path], typer.Argument(metavar="PATHS...", help="Image files or folders.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="FILE.csv, .parquet or .jsonl")],
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Label, confidence and uncertainty of every image, in a table."""
    from npmatch.predict import load
    from npmatch.predict_files import predict_files

    classifier = load(run, check_device(device))
    errors = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed} images"))
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        task = progress.add_task("")
        written, problems = predict_files(classifier, paths, out, advance=lambda n: progress.advance(task, n))
    for problem in problems:
        errors.print(f"skipped {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print_json({"out": str(out), "written": written, "skipped": problems})
    else:
        skipped = f", {len(problems)} skipped" if problems else ""
        Console().print(Text(f"{out}: {written} images{skipped}"), soft_wrap=True)
    if problems:
        raise typer.Exit(1)


@app.command()
def compare(
    words: WordsArgument,
    out: OutOption = None,
    algorithms: Annotated[
        str, typer.Option("--algorithms", help="all, or names such as fixmatch,npmatch,npmatch[divergence=kl]")
    ] = "all",
    seeds: SeedsOption = 3,
    first_seed: FirstSeedOption = 0,
    budget_iterations: IterationsOption = None,
    budget_minutes: MinutesOption = None,
    jobs: JobsOption = 1,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Many methods with many seeds on equal splits: one table, one report. Again to go on or to add to it."""
    import npmatch.compare

    recipe, overrides = recipe_and_settings(words)
    out = out or Path("runs") / f"compare-{recipe or 'folder'}"
    with telling_of_a_stop():
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
        )
    print_rows(rows, out, as_json)


@app.command()
def sweep(
    words: WordsArgument,
    out: OutOption = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="A name, a variant, or package.module:Class.")
    ] = "npmatch",
    seeds: SeedsOption = 3,
    first_seed: FirstSeedOption = 0,
    budget_iterations: IterationsOption = None,
    budget_minutes: MinutesOption = None,
    jobs: JobsOption = 1,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """One key with several values, algorithm.samples=1,5,10: a table, and a figure of the error against it."""
    import npmatch.compare

    recipe, overrides = recipe_and_settings(words)
    key, values, others = npmatch.compare.parse_sweep(overrides)
    out = out or Path("runs") / f"sweep-{recipe or 'folder'}-{key}"
    with telling_of_a_stop():
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
        )
    print_rows(rows, out, as_json, heading=key)


@app.command()
def recipes(as_json: JsonOption = False) -> None:
    """The named recipes, with the paper's error beside each."""
    from npmatch.recipes import RECIPES

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


def main(arguments: list[str] | None = None) -> int:
    """Runs a verb; what the user can put right is one line on standard error and exit code 2."""
    from npmatch.training.interrupt import InterruptedRunError

    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="npmatch", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except UsageProblem as error:
        return fail(error.format_message())
    except NPMatchError as error:
        return fail(str(error))
    except InterruptedRunError as stopped:
        fail(f"{stopped}; its state is saved, add --resume to the same command to go on")
        return stopped.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130


def console_script() -> None:
    """The `npmatch` command."""
    sys.exit(main())
