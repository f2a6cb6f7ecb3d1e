"""From run folders to tables: what finished runs left is read, averaged over seeds and written down."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from npmatch.compare.plan import Plan, Variant
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.report import Comparison, Method, Outcome, table_text, write_report
from npmatch.report.record import NUMBERS
from npmatch.runs.evaluate import read_record
from npmatch.runs.folder import RunFolder

Problems = dict[tuple[Variant, int], str]  # of the runs that failed


def run_folder(out: Path, variant: Variant, seed: int) -> RunFolder:
    """Where a run of a comparison lives."""
    return RunFolder(out / variant.slug / f"seed-{seed}")


def read_comparison(plan: Plan, out: Path, problems: Problems) -> Comparison:
    """Everything that tables and page show."""
    methods = []
    for variant in plan.variants:
        finished = [seed for seed in plan.seeds if (variant, seed) not in problems]
        methods.append(
            Method(
                plan.name(variant),
                [read_outcome(run_folder(out, variant, seed), seed) for seed in finished],
                {seed: problems[variant, seed] for seed in plan.seeds if (variant, seed) in problems},
                plan.paper_error(variant),
                plan.config(variant).training.iterations,
            )
        )
    title = plan.recipe or Path(plan.settings.get("data.root", "")).name or "comparison"
    what = f"{plan.swept} of {plan.variants[0].without(plan.swept).label}" if plan.swept else "methods compared"
    return Comparison(f"{title} · {what}", methods, describe(plan), plan.swept)


def describe(plan: Plan) -> dict[str, object]:
    """What all runs have in common, for people."""
    budget = {"iterations": plan.budget_iterations, "minutes of training": plan.budget_minutes}
    given = {f"budget, {unit}": value for unit, value in budget.items() if value is not None}
    return {"recipe": plan.recipe, "seeds": ", ".join(map(str, plan.seeds)), **given, **plan.settings}


def read_outcome(run: RunFolder, seed: int) -> Outcome:
    """The summary of a finished run, read from its folder."""
    return read_record(run).outcome(seed)


def check_splits(plan: Plan, out: Path) -> None:
    """At one seed every method that was given the same data must have learned from the same labels."""
    seen: dict[tuple[object, ...], tuple[object, Path]] = {}
    for variant, seed in plan.runs():
        path = run_folder(out, variant, seed).split
        if not path.exists():
            continue
        data = tuple(item for item in variant.settings if item[0].startswith("data."))
        content = json.loads(path.read_text(encoding="utf-8"))
        split = [content[key] for key in ("fingerprint", "labeled", "validation", "include_labeled")]
        first = seen.setdefault((seed, *data), (split, path))
        if first[0] != split:
            raise NPMatchError(f"{first[1]} and {path} differ: these runs did not learn from the same images")


def write_results(comparison: Comparison, out: Path) -> None:
    """table.txt, table.csv, runs.csv and report.html."""
    write_atomically(out / "table.txt", table_text(comparison.rows(), comparison.heading).encode())
    write_atomically(out / "table.csv", csv_text(comparison.rows()))
    write_atomically(out / "runs.csv", csv_text(run_rows(comparison)))
    write_report(comparison, out / "report.html")


def run_rows(comparison: Comparison) -> Iterable[dict[str, Any]]:
    """One row per run."""
    for method in comparison.methods:
        for run in method.outcomes:
            numbers = {key: run.numbers.get(key) for key in NUMBERS}
            yield {"method": method.name, "seed": run.seed, **numbers, "iterations": method.iterations, "problem": None}
        for seed, problem in method.problems.items():
            nothing = dict.fromkeys(NUMBERS)
            yield {"method": method.name, "seed": seed, **nothing, "iterations": method.iterations, "problem": problem}


def csv_text(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows of equal keys as CSV; a missing number is an empty cell."""
    rows = list(rows)
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()
