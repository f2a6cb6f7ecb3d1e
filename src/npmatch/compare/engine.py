"""Many methods over many seeds on equal splits, or one method over many values of one key: runs, then tables."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

from npmatch.compare.jobs import Job, JobDisplay, child_environment, problem_of, python_module, run_jobs
from npmatch.compare.plan import Plan, Variant
from npmatch.compare.results import Problems, check_splits, read_comparison, run_folder, write_results
from npmatch.errors import NPMatchError
from npmatch.files import LOCK, locked
from npmatch.report import Comparison

PLAN = "compare.json"


def carry_out(plan: Plan, out: Path, jobs: int = 1, device: str | None = None, quiet: bool = False) -> Comparison:
    """Trains what is not trained yet, `jobs` runs at a time, and writes the tables and the page from all runs."""
    if jobs < 1:
        raise NPMatchError(f"jobs={jobs}: at least one run at a time")
    plan.check()
    if out.exists() and not (out / PLAN).exists() and {path.name for path in out.iterdir()} - {LOCK}:
        raise NPMatchError(f"{out}: not empty and not a comparison; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, inherited=True) as lock:  # by the runs: they must end before another comparison begins
        plan = open_plan(plan, out)
        plan, problems = calibrate(plan, out, jobs, device, quiet)
        problems |= train_all(plan, out, problems, jobs, device, lock, quiet)
        check_splits(plan, out)
        comparison = read_comparison(plan, out, problems)
        write_results(comparison, out)
    return comparison


def open_plan(plan: Plan, out: Path) -> Plan:
    """The plan with what the folder holds already, written down before anything is done."""
    path = out / PLAN
    if path.exists():
        try:
            plan = Plan.load(path).extended(plan)
        except NPMatchError as error:
            raise NPMatchError(f"{out}: {error}; choose another --out") from error
        plan.check()
    plan.save(path)
    return plan


def train_all(
    plan: Plan, out: Path, known: Problems, jobs: int, device: str | None, lock: int | None, quiet: bool
) -> Problems:
    """Runs every run that is neither finished nor known to fail; returns the reasons of those that failed now."""
    possible = [run for run in plan.runs() if run not in known]
    waiting = {
        make_job(plan, out, variant, seed, device): (variant, seed)
        for variant, seed in possible
        if not run_folder(out, variant, seed).is_finished()
    }
    if not waiting:
        return {}
    with JobDisplay(len(possible), len(possible) - len(waiting), quiet) as display:
        failed = run_jobs(list(waiting), jobs, lock, display)
    return {waiting[job]: problem for job, problem in failed.items()}


def make_job(plan: Plan, out: Path, variant: Variant, seed: int, device: str | None) -> Job:
    """`npmatch train` of one run."""
    folder = run_folder(out, variant, seed).path
    recipe = [plan.recipe] if plan.recipe else []
    settings = [f"{key}={value}" for key, value in plan.run_settings(variant).items()]
    flags = ["--algorithm", variant.algorithm, "--seed", str(seed), "--out", str(folder)]
    flags += ["--device", device] if device else []
    words = ["train", *recipe, *settings, *flags, "--resume", "--quiet", "--json"]
    iterations = plan.config(variant, seed).training.iterations
    return Job(plan.name(variant), seed, python_module("npmatch", *words), folder, iterations)


def calibrate(plan: Plan, out: Path, jobs: int, device: str | None, quiet: bool) -> tuple[Plan, Problems]:
    """Measures the variants of a budget in minutes once; the plan remembers, so that a resume is the same run."""
    problems: Problems = {}
    if plan.budget_minutes is None:
        return plan, problems
    display = JobDisplay(0, 0, quiet)
    for variant in plan.variants:
        if variant.label in plan.calibrated:
            continue
        found = measure(plan, out, variant, jobs, device)
        if isinstance(found, str):
            display.say(f"{plan.name(variant)}: failed: {found}", warn=True)
            problems |= {(variant, seed): found for seed in plan.seeds}
        else:
            display.say(f"{plan.name(variant)}: {found} steps in {plan.budget_minutes:g} min")
            plan = replace(plan, calibrated={**plan.calibrated, variant.label: found})
            plan.save(out / PLAN)
    return plan, problems


def measure(plan: Plan, out: Path, variant: Variant, jobs: int, device: str | None) -> int | str:
    """The steps that fit the budget, measured in a process of its own; or why that failed."""
    asked = {
        "recipe": plan.recipe,
        "algorithm": variant.algorithm,
        "seed": plan.seeds[0],
        "overrides": plan.run_settings(variant),
        "minutes": plan.budget_minutes,
        "device": device,
    }
    log = out / variant.slug / "calibration.log"
    log.parent.mkdir(exist_ok=True)
    with open(log, "wb") as errors:
        child = subprocess.run(
            python_module("npmatch.compare.pace"),
            input=json.dumps(asked).encode(),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=child_environment(jobs),
            check=False,
        )
    problem = problem_of(child.returncode, log)
    return problem if problem is not None else int(json.loads(child.stdout)["iterations"])
