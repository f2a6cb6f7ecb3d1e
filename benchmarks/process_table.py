"""The tables of `benchmarks.processes`: a row for each process, with means and standard deviations over seeds."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

from benchmarks.process_scores import CONTEXTS, SCORES
from benchmarks.result import Column

Rows = list[dict[str, Any]]
TIMES = ("step_ms", "predict_s")
PREDICTIONS, COST, CONTEXT = "Predictions", "Cost", "Error in % with another context"


def summarise(processes: list[str], rows: Rows) -> tuple[Rows, Rows]:
    """The rows of all trainings with ratios of their times, and a row for each process.

    Ratios are to the first process with the same seed.
    """
    unit = {row["seed"]: row for row in rows if row["process"] == processes[0]}
    runs = [
        {**row, **{f"{key}_ratio": row[key] / unit[row["seed"]][key] for key in TIMES if row["seed"] in unit}}
        for row in rows
    ]
    return runs, [summary(process, [run for run in runs if run["process"] == process]) for process in processes]


def summary(process: str, runs: Rows) -> dict[str, Any]:
    """Means of all numbers of the runs of a process, and under KEY_std their sample standard deviations."""
    row: dict[str, Any] = {"process": process, "seeds": len(runs)}
    for key in dict.fromkeys(key for run in runs for key in run if key not in ("process", "seed")):
        values = [run[key] for run in runs if key in run]
        row[key] = mean(values)
        row[f"{key}_std"] = stdev(values) if len(values) > 1 else None
    return row


def process_columns(runs: Rows) -> list[Column]:
    """The columns of all tables; every set of images of no known class has one of its own."""
    found = dict.fromkeys(key.partition("/")[0] for run in runs for key in run if "/" in key)
    questions = {"wrong": "wrong answers against right ones"}
    questions |= {name: f"{name} against known classes" for name in found if name not in ("wrong", "context")}
    return [
        Column("process", "process"),
        Column("seeds", "seeds", "{}", PREDICTIONS),
        Column("error", "error, %", "{:.2f}", PREDICTIONS),
        Column("nll", "NLL", "{:.3f}", PREDICTIONS),
        Column("ece", "ECE, %", "{:.1f}", PREDICTIONS),
        Column("uce", "UCE, %", "{:.1f}", PREDICTIONS),
        Column("foreign_trusted", "foreign images trusted, %", "{:.1f}", PREDICTIONS),
        Column("step_ms", "a step, ms", "{:.1f}", COST),
        Column("step_ms_ratio", "ratio", "{:.2f}", COST),
        Column("predict_s", "1,000 predictions, s", "{:.3f}", COST),
        Column("predict_s_ratio", "ratio", "{:.2f}", COST),
        *(
            Column(f"{name}/{score}", score, "{:.1f}", f"AUROC in %: {question}")
            for name, question in questions.items()
            for score in SCORES
        ),
        *(Column(f"context/{change}", change, "{:.2f}", CONTEXT) for change in CONTEXTS),
    ]
