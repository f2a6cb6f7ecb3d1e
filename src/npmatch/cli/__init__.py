"""The command line: one function for each verb. An argument that contains `=` is a configuration override."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from npmatch.cli import audit, compare, data, export, forecast, label, predict, serve, train
from npmatch.cli.runner import (
    TRUST_CODE,
    fail,
    is_first_rank,
    launched_by_torchrun,
    run_app,
    set_up_process,
    without_trust_code,
)

__all__ = ["app", "console_script", "main", "run_app", "set_up_process"]

PARALLEL_VERBS = ("train", "evaluate", "predict")  # the verbs that torchrun's processes run together

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"default_map": {"help": False}},  # else typer imports pydantic to convert an absent --help
)
app.command()(data.check_data)
app.command()(train.train)
app.command()(predict.evaluate)
app.command()(predict.calibrate)
app.command()(predict.predict)
app.command()(predict.report)
app.command()(label.suggest)
app.command()(label.label)
app.command()(audit.audit)
app.command()(forecast.forecast)
app.command()(export.export)
app.command()(compare.compare)
app.command()(compare.sweep)
app.command()(compare.recipes)
app.command()(serve.serve)


@app.callback()
def options(
    trust_code: Annotated[
        bool, typer.Option(TRUST_CODE, help="With any verb: run the Python code that a run's files name.")
    ] = False,
) -> None:
    """From a folder of images of which a few are labelled to a classifier that says how sure it is."""


def main(arguments: list[str] | None = None) -> int:
    """Run `npmatch` with these arguments, by default the process's own, and return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    verb = next(iter(without_trust_code(given)), "")
    several = launched_by_torchrun() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and verb and verb not in (*PARALLEL_VERBS, "--help"):
        line = f"{verb}: torchrun is for {', '.join(PARALLEL_VERBS)}; leave it out"
        return fail(line) if is_first_rank() else 2
    if verb == "bench":
        return fail("bench: the benchmarks are run by `python -m benchmarks`, in a checkout of the source")
    return run_app(app, given, "npmatch")


def console_script() -> None:
    """The `npmatch` command."""
    set_up_process()
    sys.exit(main())
