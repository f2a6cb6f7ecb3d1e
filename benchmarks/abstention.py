"""Whether the error bound of `predict --abstain` holds on test images, over seeds with held-out labels of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.command_line import named_recipe, run, show
from benchmarks.result import BenchmarkResult, Column
from npmatch.cli.shared import (
    DataOption,
    DeviceOption,
    JobsOption,
    JsonOption,
    OutOption,
    WordsArgument,
    check_device,
)
from npmatch.compare import compare, parse_variant
from npmatch.compare.results import run_folder
from npmatch.decide import CONFIDENCE, check_target, fewest_labels
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.metrics import scores
from npmatch.runs.evaluate import Evaluation, evaluate_run


def bench_abstention(
    recipe: str,
    out: Path,
    *,
    target: float = 0.05,
    confidence: float = CONFIDENCE,
    held_out: int = 200,
    seeds: int = 10,
    algorithm: str = "npmatch",
    settings: Sequence[str] = (),
    data: str | Path | None = None,
    jobs: int | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> BenchmarkResult:
    """Trains every seed with `held_out` labels besides the recipe's; runs that are in `out` are not trained again."""
    check_target(target, confidence)
    if held_out < (fewest := fewest_labels(target, confidence)):
        raise NPMatchError(f"--held-out {held_out}: --abstain {target} needs at least {fewest}")
    words = [*settings, f"data.validation={held_out}"]
    compare(
        recipe,
        algorithms=algorithm,
        out=out,
        seeds=seeds,
        data=data,
        overrides=words,
        jobs=jobs,
        device=device,
        quiet=quiet,
    )
    rows = []
    for seed in range(seeds):
        folder = run_folder(out, parse_variant(algorithm), seed).path
        if (folder / "calibration.safetensors").exists():
            rows.append({"seed": seed, **measure(evaluate_run(folder, data, device), target, confidence)})
    if not rows:
        raise NPMatchError(f"{out}: no run has finished; the .log files in it say why")
    return BenchmarkResult(
        name="abstention",
        about=f"{recipe}, {algorithm}: error below {target:.0%}, {confidence:.0%} sure, by {held_out} held-out labels",
        columns=[
            Column("seed", "seed"),
            Column("error", "error, %", "{:.2f}"),
            Column("ece", "ECE, %", "{:.2f}"),
            Column("calibrated_ece", "at T, %", "{:.2f}"),
            Column("temperature", "T", "{:.2f}"),
            Column("allowed", "held-out: kept", "{}"),
            Column("kept", "test: kept, %", "{:.1f}"),
            Column("kept_error", "error among them, %", "{:.2f}"),
        ],
        rows=rows,
        ratios={
            "mean share kept": sum(row["kept"] for row in rows) / len(rows) / 100,
            f"seeds whose kept predictions err at most {target:.0%}": sum(row["holds"] for row in rows) / len(rows),
        },
        notes=[f"{len(rows)} of {seeds} runs finished; each is in {out}"],
        device=str(choose_device(device)),
    )


def measure(found: Evaluation, target: float, confidence: float) -> dict[str, Any]:
    """Applies the threshold that a run's held-out labels give to its test images."""
    if found.calibration is None:
        raise NPMatchError("there are no test images to measure on, apart from those held out")
    chosen = found.calibration.abstention(target, confidence)
    y = found.held_out.labels
    kept, error = chosen.measured(found.prediction.entropy, found.prediction.label != y)
    return {
        "error": scores(found.prediction, y).error,
        "ece": scores(found.prediction, y).ece,
        "calibrated_ece": None if found.calibrated is None else scores(found.calibrated, y).ece,
        "temperature": found.temperature,
        "allowed": f"{chosen.kept} of {chosen.n}, {chosen.errors} wrong",
        "kept": 100 * kept,
        "kept_error": error,
        "holds": error is None or error <= 100 * target,  # where nothing is kept, nothing is wrong
    }


def main(
    words: WordsArgument,
    held_out: Annotated[
        int, typer.Option("--held-out", help="Number of labels to calibrate on, besides the recipe's.")
    ] = 200,
    abstain: Annotated[
        float, typer.Option("--abstain", help="Highest error that is allowed among the predictions kept.")
    ] = 0.05,
    confidence: Annotated[
        float, typer.Option("--confidence", help="Probability with which the --abstain bound must hold.")
    ] = 0.9,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds, which count up from 0.")] = 10,
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="Algorithm or variant, such as npmatch[divergence=kl].")
    ] = "npmatch",
    jobs: JobsOption = None,
    out: OutOption = None,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Error bound of predict --abstain, checked on test images.

    Shows the share of predictions kept and the error among them, seed by seed.
    """
    recipe, settings = named_recipe(words)
    result = bench_abstention(
        recipe,
        out or Path("runs") / f"bench-abstention-{recipe}",
        target=abstain,
        confidence=confidence,
        held_out=held_out,
        seeds=seeds,
        algorithm=algorithm,
        settings=settings,
        data=data,
        jobs=jobs,
        device=check_device(device),
        quiet=as_json,
    )
    show(result, as_json)


if __name__ == "__main__":
    sys.exit(run(main))
