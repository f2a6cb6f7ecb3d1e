"""Carrying out a plan: measure steps if the budget is in minutes, train the runs, then write tables and a report."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

from npmatch.compare.jobs import Job, JobDisplay, child_environment, problem_of, python_module, run_jobs
from npmatch.compare.plan import Plan
from npmatch.compare.results import Problems, check_splits, is_finished, read_comparison, run_folder, write_results
from npmatch.compare.variants import Variant
from npmatch.errors import NPMatchError
from npmatch.files import LOCK, locked
from npmatch.report import Comparison

PLAN = "compare.json"


def carry_out(plan: Plan, out: Path, jobs: int = 1, device: str | None = None, quiet: bool = False) -> Comparison:
    """Trains the runs that are not finished, `jobs` at a time, and writes tables and a report of all runs."""
    if jobs < 1:
        raise NPMatchError(f"jobs={jobs}: at least one is needed")
    plan.check()
    if out.exists() and not (out / PLAN).exists() and {path.name for path in out.iterdir()} - {LOCK}:
        raise NPMatchError(f"{out}: not empty and not a comparison; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, inherited=True) as lock:  # by child processes, which must end before another comparison begins
        plan = open_plan(plan, out)
        plan, problems = measure_steps(plan, out, jobs, device, quiet)
        problems |= train_all(plan, out, problems, jobs, device, lock, quiet)
        check_splits(plan, out)
        comparison = read_comparison(plan, out, problems)
        write_results(comparison, out)
    return comparison


def open_plan(plan: Plan, out: Path) -> Plan:
    """The plan, together with the one that the folder holds already; it is saved before anything is trained."""
    path = out / PLAN
    if path.exists():
        try:
            plan = Plan.load(path).extended(plan)
        except NPMatchError as error:
            raise NPMatchError(f"{out}: {error}; choose another --out") from error
        plan.check()
    plan.save(path)
    return plan


def measure_steps(plan: Plan, out: Path, jobs: int, device: str | None, quiet: bool) -> tuple[Plan, Problems]:
    """For a budget in minutes, the plan with the number of steps of each variant, and the variants that failed.

    Each variant is measured once and saved in the plan, so that a resumed run keeps its number of steps.
    """
    problems: Problems = {}
    if plan.budget_minutes is None:
        return plan, problems
    display = JobDisplay(0, 0, quiet)
    for variant in plan.variants:
        if variant.is_baseline or variant.label in plan.measured_iterations:
            continue
        result = measure_variant(plan, out, variant, jobs, device)
        if isinstance(result, str):
            display.say(f"{plan.name(variant)}: failed: {result}", warn=True)
            problems |= {(variant, seed): result for seed in plan.seeds}
        else:
            display.say(f"{plan.name(variant)}: {result} steps in {plan.budget_minutes:g} min")
            plan = replace(plan, measured_iterations={**plan.measured_iterations, variant.label: result})
            plan.save(out / PLAN)
    return plan, problems


def measure_variant(plan: Plan, out: Path, variant: Variant, jobs: int, device: str | None) -> int | str:
    """The number of steps that fit into the budget, measured in a process of its own; or the reason why it failed."""
    request = {
        "recipe": plan.recipe,
        "algorithm": variant.algorithm,
        "seed": plan.seeds[0],
        "overrides": plan.run_settings(variant),
        "minutes": plan.budget_minutes,
        "device": device,
    }
    log = out / variant.slug / "pace.log"
    log.parent.mkdir(exist_ok=True)
    with open(log, "wb") as errors:
        child = subprocess.run(
            python_module("npmatch.compare.pace"),
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=child_environment(jobs),
            check=False,
        )
    problem = problem_of(child.returncode, log)
    return problem if problem is not None else int(json.loads(child.stdout)["iterations"])


def train_all(
    plan: Plan, out: Path, failed: Problems, jobs: int, device: str | None, lock: int | None, quiet: bool
) -> Problems:
    """Trains all runs that are neither finished nor among `failed`; returns the reasons of those that fail now."""
    possible = [run for run in plan.runs() if run not in failed]
    waiting = {
        make_job(plan, out, variant, seed, device): (variant, seed)
        for variant, seed in possible
        if not is_finished(out, variant, seed)
    }
    if not waiting:
        return {}
    with JobDisplay(len(possible), len(possible) - len(waiting), quiet) as display:
        problems = run_jobs(list(waiting), jobs, lock, display)
    return {waiting[job]: problem for job, problem in problems.items()}


def make_job(plan: Plan, out: Path, variant: Variant, seed: int, device: str | None) -> Job:
    """The job that trains one run with `npmatch train`, or evaluates a baseline."""
    folder = run_folder(out, variant, seed).path
    if variant.is_baseline:
        request = {
            "baseline": variant.algorithm,
            "out": str(folder),
            "device": device,
            "recipe": plan.recipe,
            "algorithm": variant.trained_algorithm,
            "seed": seed,
            "overrides": plan.run_settings(variant),
        }
        command = python_module("npmatch.compare.baseline", json.dumps(request))
        return Job(plan.name(variant), seed, command, folder, iterations=1)
    recipe = [plan.recipe] if plan.recipe else []
    settings = [f"{key}={value}" for key, value in plan.run_settings(variant).items()]
    options = ["--algorithm", variant.algorithm, "--seed", str(seed), "--out", str(folder)]
    options += ["--device", device] if device else []
    arguments = ["train", *recipe, *settings, *options, "--resume", "--quiet", "--json"]
    iterations = plan.config(variant, seed).training.iterations
    return Job(plan.name(variant), seed, python_module("npmatch", *arguments), folder, iterations)
