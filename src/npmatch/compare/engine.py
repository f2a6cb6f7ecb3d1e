"""Carrying out a plan: measure steps if the budget is in minutes, train the runs, then write tables and a report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from npmatch.compare.jobs import Job, JobDisplay, run_jobs
from npmatch.compare.plan import Plan
from npmatch.compare.results import (
    GrowingTable,
    Problems,
    check_splits,
    is_finished,
    read_comparison,
    run_folder,
    write_results,
)
from npmatch.compare.variants import Variant
from npmatch.distributed.cluster import open_cluster
from npmatch.distributed.jobs import Engine, Local, becomes_visible, python_module
from npmatch.errors import NPMatchError
from npmatch.files import LOCK, locked
from npmatch.report import Comparison

PLAN = "compare.json"
SLURM = ".slurm"  # folder for the files of batch jobs


def carry_out(
    plan: Plan,
    out: Path,
    jobs: int | None = None,
    device: str | None = None,
    quiet: bool = False,
    cluster: str | None = None,
    cores: int | None = None,
) -> Comparison:
    """Trains the runs that are not finished, `jobs` at a time, and writes tables and a report of all runs.

    They are trained by this machine, one at a time by default, or by a cluster, with `cores` cores each.
    """
    if jobs is not None and jobs < 1:
        raise NPMatchError(f"jobs={jobs}: at least one is needed")
    if cores is not None and cluster is None:
        raise NPMatchError("--cores is for --cluster; on this machine, --jobs runs share all cores equally")
    plan.check()
    if out.exists() and not (out / PLAN).exists() and {path.name for path in out.iterdir()} - {LOCK}:
        raise NPMatchError(f"{out}: not empty and not a comparison; choose another --out")
    with ExitStack() as contexts:
        remote = open_cluster(cluster, out / SLURM, jobs, device, cores) if cluster is not None else None
        if remote is not None:
            contexts.enter_context(remote)
            device = remote.device
            if remote.warning:
                JobDisplay(0, 0, quiet).say(remote.warning, warn=True)
        out.mkdir(parents=True, exist_ok=True)
        # The lock is inherited by child processes, which must end before another comparison begins.
        lock = contexts.enter_context(locked(out, inherited=True))
        if remote is not None:
            remote.campaign = out
        return _carry_out(plan, out, remote or Local(jobs or 1, lock), device, quiet)


def _carry_out(plan: Plan, out: Path, engine: Engine, device: str | None, quiet: bool) -> Comparison:
    """The steps of a comparison, in a folder that is locked."""
    plan = open_plan(plan, out)
    plan, problems = measure_steps(plan, out, engine, device, quiet)
    problems |= train_all(plan, out, problems, engine, device, quiet)
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


def measure_steps(plan: Plan, out: Path, engine: Engine, device: str | None, quiet: bool) -> tuple[Plan, Problems]:
    """For a budget in minutes, the plan with the number of steps of each variant, and the variants that failed.

    Each variant is measured once and saved in the plan, so that a resumed run keeps its number of steps.
    """
    problems: Problems = {}
    if plan.budget_minutes is None:
        return plan, problems
    display = JobDisplay(0, 0, quiet)
    variants = [v for v in plan.variants if not v.is_baseline and v.label not in plan.measured_iterations]
    for variant, result in measure_variants(plan, out, variants, engine, device):
        if isinstance(result, str):
            display.say(f"{plan.name(variant)}: failed: {result}", warn=True)
            problems |= {(variant, seed): result for seed in plan.seeds}
        else:
            display.say(f"{plan.name(variant)}: {result} steps in {plan.budget_minutes:g} min")
            plan = replace(plan, measured_iterations={**plan.measured_iterations, variant.label: result})
            plan.save(out / PLAN)
    return plan, problems


def measure_variants(
    plan: Plan, out: Path, variants: Sequence[Variant], engine: Engine, device: str | None
) -> Iterator[tuple[Variant, int | str]]:
    """Each variant with the number of its steps that fit into the budget, or with the reason why that failed.

    They are measured by the engine, on the machines that will train: on this machine one after the other, so that they
    do not slow one another down, on a cluster all at once.
    """
    engine = engine.one_at_a_time()
    while variants:
        now, variants = variants[: engine.parallel], variants[engine.parallel :]
        measurements = {make_measurement(plan, out, variant, device): variant for variant in now}
        problems = run_jobs(list(measurements), engine, JobDisplay(0, 0, quiet=True))
        for job, variant in measurements.items():
            yield variant, problems[job] if job in problems else read_measurement(job)


def make_measurement(plan: Plan, out: Path, variant: Variant, device: str | None) -> Job:
    """The job that measures a step of a variant."""
    folder = out / variant.slug / "pace"  # is never made; the files beside it are named after it
    job = Job(plan.name(variant), plan.seeds[0], (), folder, iterations=1)
    request = {
        "out": str(_measured(job)),
        "recipe": plan.recipe,
        "algorithm": variant.algorithm,
        "seed": plan.seeds[0],
        "overrides": plan.run_settings(variant),
        "minutes": plan.budget_minutes,
        "device": device,
    }
    return replace(job, command=python_module("npmatch.compare.pace", json.dumps(request)))


def read_measurement(job: Job) -> int:
    """The number of steps that a measurement found."""
    path = _measured(job)
    becomes_visible(path.exists, path.parent)
    return int(json.loads(path.read_text())["iterations"])


def _measured(job: Job) -> Path:
    return job.folder.with_name(f"{job.folder.name}.json")


def train_all(plan: Plan, out: Path, failed: Problems, engine: Engine, device: str | None, quiet: bool) -> Problems:
    """Trains all runs that are neither finished nor among `failed`; returns the reasons of those that fail now.

    The tables are written again whenever a run ends, with the runs that have ended so far.
    """
    possible = [run for run in plan.runs() if run not in failed]
    waiting = {
        make_job(plan, out, variant, seed, device): (variant, seed)
        for variant, seed in possible
        if not is_finished(out, variant, seed)
    }
    if not waiting:
        return {}
    table = GrowingTable(plan, out, failed, set(possible) - set(waiting.values()))
    with JobDisplay(len(possible), len(possible) - len(waiting), quiet) as display:
        problems = run_jobs(list(waiting), engine, display, lambda job, problem: table.add(waiting[job], problem))
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
