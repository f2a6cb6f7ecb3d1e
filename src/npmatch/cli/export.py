"""`npmatch export`: a trained model for those who have no npmatch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from npmatch.cli.shared import JsonOption, RunArgument, print_json
from npmatch.types import NoSuchChoiceError


def export(
    run: RunArgument,
    form: Annotated[str, typer.Option("--format", help="onnx: one file for any runtime.")] = "onnx",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The file to write; default RUN/model.onnx.")] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not compare the file with predict.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the model as one file that says what predict says."""
    from npmatch.export import BATCHES, export_onnx
    from npmatch.predict import load

    if form != "onnx":
        raise NoSuchChoiceError("format", form, ["onnx"])
    path = out or run / "model.onnx"
    difference = export_onnx(load(run, "cpu"), path, check=not no_check)
    size = path.stat().st_size
    if as_json:
        print_json({"out": str(path), "bytes": size, "largest_difference": difference})
        return
    compared = "not compared with predict"
    if difference is not None:
        compared = (
            f"differs from predict by {difference:.1e} at most (batches of {', '.join(map(str, BATCHES))} images)"
        )
    Console().print(Text(f"{path}: {size / 1e3:,.0f} kB, {compared}"), soft_wrap=True)
