"""`python -m benchmarks` lists all benchmarks; `python -m benchmarks step` equals `python -m benchmarks.step`."""

import sys

import typer

from benchmarks import (
    abstention,
    audits,
    augment,
    blocks,
    curves,
    defaults,
    faults,
    first_labels,
    forecasts,
    labelling,
    loader,
    memory,
    minutes,
    page,
    pretrained,
    processes,
    scaling,
    serve,
    step,
    uncertainty,
)
from benchmarks.command_line import run_app

BENCHMARKS = (
    step,
    uncertainty,
    augment,
    blocks,
    loader,
    memory,
    minutes,
    scaling,
    first_labels,
    labelling,
    audits,
    forecasts,
    page,
    abstention,
    defaults,
    pretrained,
    processes,
    curves,
    serve,
    faults,
)

app = typer.Typer(
    help="Benchmarks of npmatch. Each compares its variants in one run and prints their ratio.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
for module in BENCHMARKS:
    app.command(module.__name__.removeprefix("benchmarks."))(module.main)

if __name__ == "__main__":
    sys.exit(run_app(app, "python -m benchmarks"))
