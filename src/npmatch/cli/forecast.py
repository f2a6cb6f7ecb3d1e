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

CLASSES = 5  # that pay most, shown in the table


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

    found = forecast_run(run, labels, data, check_device(device))
    if as_json:
        print_json(found.asdict())
        return
    print_line(f"{run}: {100 * found.error:.1f} % error with {found.labels} labels, {found.source}")
    for one in found.expected:
        band = f"80 % band {100 * one.low:.1f} to {100 * one.high:.1f} %"
        print_line(f"with {one.labels} labels: about {100 * one.error:.1f} %, {band}")
    for line in found.remarks:
        print_line(line)
    paying = [one for one in found.classes if one.gain is not None][:CLASSES]
    if paying:
        table = Table("the next labels pay most for", "labels now", "error without half of them")
        for paid in paying:
            table.add_row(Text(escaped(paid.name)), str(paid.labels), f"{paid.gain:+.1f} points")
        Console().print(table)
