"""`forecast` says what more labels would bring."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npmatch.cli.shared import (
    DeviceOption,
    JsonOption,
    RunArgument,
    RunDataOption,
    check_device,
    print_json,
    print_line,
)
from npmatch.errors import escaped


def forecast(
    run: RunArgument,
    labels: Annotated[
        int | None,
        typer.Option("--labels", help="Number of labels to forecast; default: 2 and 4 times those of the run."),
    ] = None,
    data: RunDataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast the error with more labels.

    Prints the error expected with 2 and 4 times the labels with an 80 % band, and the classes whose labels pay most.
    No run is trained for it.
    """
    from npmatch.labelling.forecast import forecast_run
    from npmatch.report.forecast import CLASS_COLUMNS, class_rows, lines

    found = forecast_run(run, labels, data, check_device(device), quiet=as_json).asdict()
    if as_json:
        print_json(found)
        return
    for line in lines(found, run):
        print_line(line)
    if rows := class_rows(found):
        table = Table(*CLASS_COLUMNS)
        for name, *cells in rows:
            table.add_row(Text(escaped(name)), *cells)
        Console().print(table)
