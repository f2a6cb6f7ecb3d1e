"""Does `--abstain` keep its word? Many seeds, each with held-out labels of its own, measured on the test images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.result import BenchResult, Column
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
    jobs: int = 1,
    device: str | None = None,
    quiet: bool = False,
) -> BenchResult:
    """Trains every seed on the recipe's labels, with the held-out ones besides; what `out` has is not trained again."""
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
        folder = run_folder(out, parse_variant(algorithm), seed)
        if (folder / "calibration.safetensors").exists():
            rows.append({"seed": seed, **measure(evaluate_run(folder, data, device), target, confidence)})
    if not rows:
        raise NPMatchError(f"{out}: no run has finished; the .log files in it say why")
    return BenchResult(
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
    """What the threshold of a run's held-out labels does to its test images."""
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
        "holds": error is None or error <= 100 * target,  # nothing kept is nothing wrong
    }
