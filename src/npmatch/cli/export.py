"""`npmatch export`: a trained model for programs without npmatch, or for the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npmatch.cli.shared import JsonOption, OverwriteOption, RunArgument, print_json, print_line
from npmatch.errors import NoSuchChoiceError

if TYPE_CHECKING:
    from npmatch.predict.classifier import Classifier


def export(
    run: RunArgument,
    form: Annotated[
        str,
        typer.Option("--format", help="onnx: one file for any ONNX runtime; hub: a folder for the Hugging Face hub."),
    ] = "onnx",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File or folder to write; default: RUN/model.onnx or RUN/hub.")
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="With onnx: do not compare the file's output with predict.")
    ] = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Export a model to ONNX or for the Hugging Face hub.

    The ONNX file gives the same output as predict. The folder for the hub holds the model and a model card.
    """
    if form not in FORMATS:
        raise NoSuchChoiceError("format", form, list(FORMATS))
    from npmatch.runs.open import load

    facts, line = FORMATS[form](load(run, "cpu"), run, out, no_check, overwrite)
    if as_json:
        print_json(facts)
    else:
        print_line(line)


def to_onnx(
    classifier: Classifier, run: Path, out: Path | None, no_check: bool, overwrite: bool
) -> tuple[dict[str, Any], str]:
    """Write the ONNX file; returns what to print, as JSON and as a line."""
    from npmatch.predict.export import BATCH_SIZES, export_onnx
    from npmatch.runs.outputs import check_output

    if out is not None:
        check_output(out, overwrite)
    path = out or run / "model.onnx"
    difference = export_onnx(classifier, path, check=not no_check)
    size = path.stat().st_size
    compared = "not compared with predict"
    if difference is not None:
        compared = (
            f"differs from predict by {difference:.1e} at most (batches of {', '.join(map(str, BATCH_SIZES))} images)"
        )
    facts = {"out": str(path), "bytes": size, "largest_difference": difference}
    return facts, f"{path}: {size / 1e3:,.0f} kB, {compared}"


def to_hub_folder(
    classifier: Classifier, run: Path, out: Path | None, no_check: bool, overwrite: bool
) -> tuple[dict[str, Any], str]:
    """Write the folder for the hub; returns what to print, as JSON and as a line."""
    from npmatch.predict.hub import FILES
    from npmatch.runs.outputs import check_output

    folder = out or run / "hub"
    for name in FILES:  # in RUN/hub too: somebody may have edited the model card
        check_output(folder / name, overwrite)
    classifier.save_pretrained(folder, repo_id=(run if out is None else out).resolve().name)
    files = [name for name in FILES if (folder / name).is_file()]  # the folder may hold other files
    return {"out": str(folder), "files": files}, f"{folder}: {', '.join(files)}"


FORMATS = {"onnx": to_onnx, "hub": to_hub_folder}
