"""The results of a comparison: read from the folders of its runs, and written as tables and a report."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from npmatch.compare.plan import Plan
from npmatch.compare.variants import Variant
from npmatch.distributed.jobs import becomes_visible
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.report import Comparison, Method, Outcome, table_text, write_report
from npmatch.report.record import NUMBERS
from npmatch.runs.evaluate import read_record
from npmatch.runs.folder import RunFolder

Run = tuple[Variant, int]  # its variant and its seed
Problems = dict[Run, str]  # run that failed → reason


def run_folder(out: Path, variant: Variant, seed: int) -> RunFolder:
    """The folder of a run in a comparison."""
    return RunFolder(out / variant.slug / f"seed-{seed}")


def is_finished(out: Path, variant: Variant, seed: int) -> bool:
    """Whether a run in a comparison needs no more work; a baseline has no model, only results."""
    run = run_folder(out, variant, seed)
    return run.has_results() if variant.is_baseline else run.is_finished()


def read_comparison(plan: Plan, out: Path, problems: Problems) -> Comparison:
    """The comparison of all runs of a plan, of which all are finished but those with problems."""
    finished = [run for run in plan.runs() if run not in problems]
    return make_comparison(plan, {run: read_outcome(run_folder(out, *run), run[1]) for run in finished}, problems)


def make_comparison(plan: Plan, outcomes: Mapping[Run, Outcome], problems: Problems) -> Comparison:
    """The methods with the outcomes of their runs so far, for the tables and the report."""
    methods = []
    for variant in plan.variants:
        runs = [(variant, seed) for seed in plan.seeds]
        methods.append(
            Method(
                plan.name(variant),
                [outcomes[run] for run in runs if run in outcomes],
                {run[1]: problems[run] for run in runs if run in problems},
                plan.paper_error(variant),
                plan.iterations(variant),
            )
        )
    title = plan.recipe or Path(plan.settings.get("data.root", "")).name or "comparison"
    subtitle = f"{plan.swept} of {plan.variants[0].without(plan.swept).label}" if plan.swept else "methods compared"
    return Comparison(f"{title} · {subtitle}", methods, describe(plan), plan.swept)


class GrowingTable:
    """The tables of a comparison under way, written again whenever a run ends."""

    def __init__(self, plan: Plan, out: Path, failed: Problems, finished: Iterable[Run]) -> None:
        """`finished` are the runs that need no more work; those in `failed` cannot be trained."""
        self.plan, self.out, self.problems = plan, out, dict(failed)
        self.outcomes = {run: read_outcome(run_folder(out, *run), run[1]) for run in finished}

    def add(self, run: Run, problem: str | None) -> None:
        """Adds a run that has ended, which failed if there is a problem."""
        if problem is not None:
            self.problems[run] = problem
        elif becomes_visible(lambda: is_finished(self.out, *run), run_folder(self.out, *run).path):
            with suppress(NPMatchError):  # reading all runs at the end reports it, when the others are trained
                self.outcomes[run] = read_outcome(run_folder(self.out, *run), run[1])
        write_tables(make_comparison(self.plan, self.outcomes, self.problems), self.out)


def describe(plan: Plan) -> dict[str, object]:
    """The settings that all runs share, as the report shows them."""
    units = {"iterations": plan.budget_iterations, "minutes of training": plan.budget_minutes}
    budget = {f"budget, {unit}": value for unit, value in units.items() if value is not None}
    return {"recipe": plan.recipe, "seeds": ", ".join(map(str, plan.seeds)), **budget, **plan.settings}


def read_outcome(run: RunFolder, seed: int) -> Outcome:
    """The outcome of a finished run, read from its folder."""
    return read_record(run).outcome(seed)


def check_splits(plan: Plan, out: Path) -> None:
    """Refuses runs with the same seed and the same data settings whose splits differ."""
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
    """Writes table.txt, table.csv, runs.csv and report.html."""
    write_tables(comparison, out)
    write_report(comparison, out / "report.html")


def write_tables(comparison: Comparison, out: Path) -> None:
    """Writes table.txt, table.csv and runs.csv."""
    write_atomically(out / "table.txt", table_text(comparison.rows(), comparison.heading).encode())
    write_atomically(out / "table.csv", csv_text(comparison.rows()))
    write_atomically(out / "runs.csv", csv_text(run_rows(comparison)))


def run_rows(comparison: Comparison) -> Iterable[dict[str, Any]]:
    """The rows of runs.csv, one for each run."""
    for method in comparison.methods:
        for run in method.outcomes:
            numbers = {key: run.numbers.get(key) for key in NUMBERS}
            yield {"method": method.name, "seed": run.seed, **numbers, "iterations": method.iterations, "problem": None}
        for seed, problem in method.problems.items():
            empty = dict.fromkeys(NUMBERS)
            yield {"method": method.name, "seed": seed, **empty, "iterations": method.iterations, "problem": problem}


def csv_text(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows with equal keys as CSV; None is an empty cell."""
    rows = list(rows)
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()
