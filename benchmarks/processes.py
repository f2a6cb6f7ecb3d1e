"""NP-Match's neural processes against each other: errors, cost, uncertainty, and how much the context matters.

Every process is trained with every seed, in this process, and judged with its averaged weights. Trainings and scores
stay in a folder, under names that follow from all settings: a benchmark that was interrupted goes on where it stopped,
and other images to judge by need no new training.

A rival may also be an ensemble, written `5*fixmatch`: five networks that are trained on the same labels with other
random numbers, and whose mean prediction counts.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import torch
import typer

from benchmarks.command_line import OutputOption, named_recipe, run, show
from benchmarks.far_sets import FarSource, far_images
from benchmarks.process_scores import SCORES, Judge, judge_ensemble, judge_run
from benchmarks.process_table import process_columns, summarise
from benchmarks.result import BenchmarkResult
from benchmarks.synthetic import torch_defaults
from benchmarks.timing import tell
from npmatch.algorithms import ALGORITHMS, NPMatch
from npmatch.cli.shared import DataOption, DeviceOption, JsonOption, WordsArgument, check_device
from npmatch.compare.plan import Plan, settings_as_text
from npmatch.compare.variants import Variant, parse_variant
from npmatch.distributed.devices import choose_device
from npmatch.errors import InterruptedRunError, NoSuchChoiceError, NPMatchError, StoppedError
from npmatch.files import read_regular, write_atomically
from npmatch.runs.fit import fit
from npmatch.runs.folder import RunFolder
from npmatch.runs.memory import clear_memory
from npmatch.runs.resume import HARMLESS
from npmatch.training.nonfinite import NotFiniteError

PROCESSES = get_args(get_type_hints(NPMatch.Config)["process"])
ALL_PROCESSES = ",".join(PROCESSES)
PROCESS = "algorithm.process"
NO_EVALUATION = {"training.eval_every": "1000000000"}  # in training: it would take time, and show test errors
MEMBER_SEEDS = 1000  # between the seeds of two members of an ensemble
NOTE = "Times are those of trainings one after another; their ratios are to the first row, seed by seed."


@dataclass(frozen=True)
class Rival:
    """What has a row of its own: a process or an algorithm, or an ensemble of it."""

    variant: Variant
    members: int = 1

    @property
    def label(self) -> str:
        """The rival as `parse_processes` reads it."""
        process = dict(self.variant.settings).get(PROCESS)
        name = self.variant.label
        if process is not None:
            name = process + self.variant.without(PROCESS).label.removeprefix(self.variant.algorithm)
        return name if self.members == 1 else f"{self.members}*{name}"


@dataclass(frozen=True)
class Benchmark:
    """What is measured: the trainings, and the images that judge them."""

    plan: Plan
    judge: Judge
    far: list[FarSource]
    out: Path
    device: str
    quiet: bool = False

    def measure(self, rival: Rival, seed: int) -> dict[str, Any]:
        """The scores of one training, or of the trainings of an ensemble, from the folder if they are there."""
        config = self.plan.config(rival.variant, seed).flat()
        facts = {key: value for key, value in config.items() if key not in HARMLESS}
        folder = self.out / rival.variant.slug / f"seed-{seed}-{_digest([facts, self.device])}"
        images = [self.judge, *SCORES, *sorted((source.name, str(source.root)) for source in self.far)]
        kept = folder.with_name(f"{folder.name}{_times(rival)}-{_digest(images)}.json")
        if kept.is_file():  # also if the run itself has been removed, to save space
            return read_scores(kept)
        members = [folder, *(folder.with_name(f"{folder.name}-member-{n}") for n in range(1, rival.members))]
        for number, member in enumerate(members):
            with torch_defaults():
                self.train(rival, seed, member, number, folder)
        data = None if config["data.root"] is None else Path(config["data.root"])
        with torch_defaults():
            judged = (self.judge, self.far, data, self.device)
            scores = judge_run(folder, *judged) if rival.members == 1 else judge_ensemble(members, *judged)
        row = {"process": rival.label, "seed": seed, **scores}
        write_atomically(kept, (json.dumps(row, ensure_ascii=False) + "\n").encode())
        return row

    def train(self, rival: Rival, seed: int, folder: Path, member: int, first: Path) -> None:
        """Trains into a folder, or goes on with the run that is there; a further member has the labels of the first."""
        settings = self.plan.run_settings(rival.variant)
        if member:
            settings = {**settings, "data.split": str(RunFolder(first).split)}
        clear_memory(torch.device(self.device))  # what an earlier training has left would make batches smaller
        try:
            fit(
                self.plan.recipe,
                algorithm=rival.variant.trained_algorithm,
                out=folder,
                seed=seed + member * MEMBER_SEEDS,
                device=self.device,
                resume=RunFolder(folder).exists(),
                overrides=settings,
                quiet=self.quiet,
            )
        except InterruptedRunError as stopped:
            where = f"{rival.label}, seed {seed}: stopped after step {stopped.step}"
            signum = stopped.exit_code - 128
            raise StoppedError(f"{where}; the same command goes on from there", signum) from stopped


def bench_processes(
    recipe: str,
    processes: str = ALL_PROCESSES,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    iterations: int | None = None,
    settings: Sequence[str] = (),
    data: Path | None = None,
    far: Sequence[str] = (),
    judge: Judge = Judge.test,
    out: Path | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> BenchmarkResult:
    """Trains and judges every process with every seed; what is in `out` is not done again."""
    shared = {**NO_EVALUATION, **({} if data is None else {"data.root": str(data)}), **settings_as_text(settings)}
    rivals = parse_processes(processes)
    variants = tuple(dict.fromkeys(rival.variant for rival in rivals))
    plan = Plan(recipe, variants, tuple(seeds), shared, budget_iterations=iterations)
    plan.check()
    sources = parse_sources(far, plan)
    chosen = str(choose_device(device))
    bench = Benchmark(plan, judge, sources, out or Path("runs") / f"bench-processes-{recipe}", chosen, quiet)
    runs_to_judge = [(rival, seed) for seed in plan.seeds for rival in rivals]
    rows, diverged = [], []
    for number, (rival, seed) in enumerate(runs_to_judge, 1):
        name = f"{rival.label}, seed {seed}"
        try:
            row = bench.measure(rival, seed)
        except NotFiniteError as error:  # the others go on
            tell(f"{number} of {len(runs_to_judge)}: {name}: {error}")
            diverged.append(name)
            continue
        rows.append(row)
        times = f"{row['step_ms']:.1f} ms a step, {row['predict_s']:.2f} s per 1,000 predictions"
        tell(f"{number} of {len(runs_to_judge)}: {name}: error {row['error']:.2f} %, {times}")
    if not rows:
        raise NPMatchError(f"no training has finished, because all diverged; their logs are in {bench.out}")
    steps = sorted({plan.iterations(variant) or 0 for variant in plan.variants})
    runs, table = summarise([rival.label for rival in rivals], rows)
    return BenchmarkResult(
        name="processes",
        about=f"{recipe}, {' or '.join(f'{n:,}' for n in steps)} steps, seeds {', '.join(map(str, plan.seeds))}",
        columns=process_columns(runs),
        rows=table,
        notes=[judge.about, *(f"Diverged, and left out: {name}." for name in diverged), NOTE],
        device=chosen,
        runs=runs,
    )


def parse_sources(words: Sequence[str], plan: Plan) -> list[FarSource]:
    """The sources of --far; one that cannot be read is found out now, and not after hours of training."""
    sources = [FarSource.parse(word) for word in words]
    own = plan.config(plan.variants[0]).data.source
    for number, source in enumerate(sources):
        if source.name == own:
            raise NPMatchError(f"--far {source.name}: holds the known classes themselves; name another source")
        if source.name in [other.name for other in sources[:number]]:
            raise NPMatchError(f"--far {source.name}: is given twice; name each source once")
        far_images(source, (1, 8, 8))
    return sources


def parse_processes(text: str) -> list[Rival]:
    """Variants as `compare` takes them, with the names of processes besides those of algorithms, and ensembles.

    Settings in brackets may be separated by commas too: kernel[max_entropy=2,scale=1000].
    """
    return list(dict.fromkeys(parse_rival(word.strip()) for word in re.split(r",(?![^\[\]]*\])", text)))


def parse_rival(word: str) -> Rival:
    """The rival in a text `name`, `name[key=value;…]` or `N*name…`, with the name of a process or of an algorithm."""
    count, star, rest = word.rpartition("*") if re.match(r"[^\[]*\*", word) else ("1", "", word)
    if not count.isdecimal() or (star and int(count) < 2):
        raise NPMatchError(f"'{word}': write the number of members before the star, for example 5*fixmatch")
    return Rival(parse_process(rest), int(count))


def parse_process(word: str) -> Variant:
    """The variant in a text `name` or `name[key=value;…]`, with the name of a process or of an algorithm."""
    name, bracket, rest = word.partition("[")
    settings = bracket + re.sub(r",(?=\s*[\w.]+\s*=)", ";", rest)
    if name not in {*PROCESSES, *ALGORITHMS} and ":" not in name:
        raise NoSuchChoiceError("process or algorithm", name, [*PROCESSES, *ALGORITHMS])
    if name not in PROCESSES:
        return parse_variant(name + settings)
    variant = parse_variant(f"npmatch{settings}")
    if PROCESS in dict(variant.settings):
        raise NPMatchError(f"'{word}' sets {PROCESS} twice")
    return variant.with_setting(PROCESS, name)


def read_scores(path: Path) -> dict[str, Any]:
    """The scores of a run that an earlier call has kept."""
    try:
        row = json.loads(read_regular(path))
        return {**row, "process": str(row["process"]), "seed": int(row["seed"])}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise NPMatchError(f"{path}: not scores written by this benchmark; remove the file") from error


def _times(rival: Rival) -> str:
    return "" if rival.members == 1 else f"-x{rival.members}"


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:8]


def parse_seeds(text: str) -> list[int]:
    """Seeds that are separated by commas."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise NPMatchError(f"--seeds {text}: give numbers, such as 0,1,2")
    return list(dict.fromkeys(map(int, words)))


def main(
    words: WordsArgument,
    processes: Annotated[
        str,
        typer.Option("--processes", help="Processes and rivals, such as paper,kernel[scale=1000],5*fixmatch."),
    ] = ALL_PROCESSES,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, separated by commas.")] = "0,1,2",
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="Number of training steps; default: the recipe's.")
    ] = None,
    far: Annotated[
        list[str] | None,
        typer.Option("--far", help="NAME=DIR: a source whose images are of no known class; may be repeated."),
    ] = None,
    judge: Annotated[
        Judge, typer.Option("--judge", help="Images to judge by: test, or unlabeled ones to tune settings.")
    ] = Judge.test,
    output: OutputOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder that keeps trainings and scores; default: runs/….")
    ] = None,
    data: DataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Neural processes of NP-Match against each other and rivals.

    Trains each with each seed and measures error, calibration, cost, uncertainty and the use of the context.
    """
    recipe, settings = named_recipe(words)
    numbers = parse_seeds(seeds)
    result = bench_processes(
        recipe,
        processes,
        seeds=numbers,
        iterations=iterations,
        settings=settings,
        data=data,
        far=far or [],
        judge=judge,
        out=out,
        device=check_device(device),
        quiet=as_json,
    )
    for path in output or []:
        result.write(path)
    show(result, as_json)
    if any(row["seeds"] < len(numbers) for row in result.rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(run(main))
