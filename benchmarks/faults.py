"""Fault injection: whether runs that are killed and resumed end with the same weights and log as an undisturbed run.

Every round trains the digits afresh and dies several times on the way: by kill -9 or SIGTERM at a random moment of its
life (its start and its end included), or by kill -9 in the middle of writing a checkpoint. Each time it is resumed. In
the end its weights, its last checkpoint and its log are compared with those of a run that was left alone.
"""

from __future__ import annotations

import json
import math
import multiprocessing as mp
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.command_line import run, show
from benchmarks.result import BenchmarkResult, Column
from npmatch.cli.shared import DeviceOption, JsonOption, check_device
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.files import temporary_path

FAULTS = ("kill -9", "SIGTERM", "kill -9 in a checkpoint's write")
CLOCKS = ("seconds", "images_per_second")
SETTINGS = ("training.checkpoint_every=20", "training.log_every=10", "training.eval_every=50")


class Start(StrEnum):
    """What the network of a run starts from."""

    SCRATCH = "scratch"
    PRETRAINED = "pretrained"
    FROZEN = "frozen"  # and its features are computed once


# The digits are small; the network sees them at the least size it can take.
LITE = ("backbone.name=timm:tf_efficientnet_lite0", "backbone.pretrained=true", "backbone.input_size=32")
STARTS: dict[Start, tuple[str, ...]] = {
    Start.SCRATCH: (),
    Start.PRETRAINED: LITE,
    Start.FROZEN: (*LITE, "backbone.frozen=true", "backbone.cached_views=1"),
}


class Death(NamedTuple):
    """How one attempt at finishing a run ends."""

    fault: str
    moment: float  # seconds of work after its start; in a write: number of checkpoints, and share of bytes written


@dataclass(frozen=True)
class Plan:
    """What every round does: the command it runs and how often it is killed."""

    words: tuple[str, ...]  # of `npmatch train`, but for --out
    device: str
    kills: int  # in a round, at most
    seconds: float = 0.0  # of work that an undisturbed run takes


@dataclass
class Round:
    """The outcome of one round."""

    number: int
    same_weights: bool = False
    same_log: bool = False
    faults: Counter[str] = field(default_factory=Counter)
    problem: str = ""

    @property
    def is_same(self) -> bool:
        """Weights, last checkpoint and log are those of the undisturbed run."""
        return self.same_weights and self.same_log and not self.problem


def bench_faults(
    rounds: int = 5,
    iterations: int = 200,
    device: str = "cpu",
    jobs: int = 1,
    kills: int = 3,
    seed: int = 0,
    recipe: str = "digits-40",
    settings: Sequence[str] = SETTINGS,
) -> BenchmarkResult:
    """Kills `rounds` runs `kills` times each and resumes them to their end."""
    for name, number in (("rounds", rounds), ("iterations", iterations), ("jobs", jobs), ("kills", kills)):
        if number < 1:
            raise NPMatchError(f"--{name} {number}: must be at least 1")
    if device == "cpu":
        import_what_training_needs()

    extra = ("training.deterministic=true",) if device.startswith("cuda") else ()
    words = (recipe, f"training.iterations={iterations}", *settings, *extra, "--quiet", "--device", device)
    with tempfile.TemporaryDirectory(prefix="npmatch-faults-") as folder:
        straight = Path(folder) / "straight"
        undisturbed = _start(Plan(words, device, kills), straight, None)
        seconds = _wait_for_work(undisturbed, math.inf)
        code = _finish(undisturbed)
        plan = Plan(words, device, kills, seconds)
        if code != 0:
            raise NPMatchError(f"the undisturbed run ended with {code}: {_last_words(straight)}")
        with ProcessPoolExecutor(jobs, mp_context=mp.get_context("fork" if device == "cpu" else "spawn")) as pool:
            numbers = range(seed, seed + rounds)
            done = list(pool.map(run_round, [plan] * rounds, [Path(folder)] * rounds, numbers))
    return _result(done, iterations, device, plan)


def import_what_training_needs() -> None:
    """Imports, before anything is forked, what each of the runs would import anew."""
    for name in ("npmatch.runs.fit", "sklearn.datasets", "torch._dynamo"):
        import_module(name)


def run_round(plan: Plan, folder: Path, number: int) -> Round:
    """Trains one run that is killed on its way and resumed to its end."""
    out, result = folder / f"round-{number}", Round(number)
    for death in [*draw_deaths(plan, number), None]:
        process = _start(plan, out, death)
        if death is not None and death.fault != FAULTS[2]:
            _wait_for_work(process, death.moment)
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL if death.fault == FAULTS[0] else signal.SIGTERM)
        code = _finish(process)
        if code in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM) and death is not None:
            result.faults[death.fault] += 1
        elif code == 0:
            break
        else:
            result.problem = f"round {number} ended with {code}: {_last_words(out)}"
            return result
    result.same_weights = all(
        (out / name).read_bytes() == (folder / "straight" / name).read_bytes()
        for name in ("model.safetensors", f"checkpoints/{_last_checkpoint(folder / 'straight')}")
    )
    result.same_log = _log(out) == _log(folder / "straight")
    return result


def draw_deaths(plan: Plan, number: int) -> list[Death]:
    """The deaths of one round, drawn at random."""
    draws = random.Random(number)
    return [
        Death(fault, draws.uniform(0, plan.seconds) if fault != FAULTS[2] else draws.uniform(1, 4))
        for fault in draws.choices(FAULTS, k=plan.kills)
    ]


def _start(plan: Plan, out: Path, death: Death | None) -> Any:
    """Starts `npmatch train --resume` in a process; on the CPU it is forked, which saves the time of its imports."""
    # A CUDA device does not survive a fork.
    context: Any = mp.get_context("fork" if plan.device == "cpu" else "spawn")
    process = context.Process(target=_train, args=([*plan.words, "--out", str(out), "--resume"], out, death))
    process.start()
    return process


def _wait_for_work(process: Any, seconds: float) -> float:
    """Waits until the process has worked for `seconds` or ended; returns how long it has worked.

    Measured in processor time where Linux tells it, so that moments fall into a run's life on a busy machine too.
    """
    started, worked = time.monotonic(), 0.0
    account = Path(f"/proc/{process.pid}/stat")
    has_account = account.exists()
    while process.is_alive() and worked < seconds:
        process.join(0.01)
        if not has_account:
            worked = time.monotonic() - started
        elif account.exists():
            user, system = account.read_text().rpartition(")")[2].split()[11:13]
            worked = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return worked


def _finish(process: Any) -> int:
    process.join()
    code: int = process.exitcode
    process.close()
    return code


def _train(words: list[str], out: Path, death: Death | None) -> None:
    """The training process, which dies as it was told."""
    import torch

    import npmatch.cli

    with open(out.with_suffix(".log"), "ab", buffering=0) as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    torch.set_num_threads(1)  # bits depend on their number
    if death is not None and death.fault == FAULTS[2]:
        die_in_a_write(int(death.moment), 1.25 * (death.moment % 1))
    sys.exit(npmatch.cli.main(["train", *words]))


def die_in_a_write(number: int, share: float) -> None:
    """Makes the `number`-th write of a checkpoint die by kill -9 at `share` of its bytes; from 1 on, just after it."""
    from npmatch.training import checkpoint

    write, writes = checkpoint.write_atomically, iter(range(1, sys.maxsize))

    def dying(path: Path, content: bytes) -> None:
        if next(writes) < number:
            write(path, content)
            return
        if share < 1:
            temporary_path(path).write_bytes(content[: int(share * len(content))])
        else:
            write(path, content)
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.write_atomically = dying


def _last_checkpoint(run: Path) -> str:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*.safetensors"))[-1]


def _log(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log in their order, without clock times."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in CLOCKS} for line in lines]


def _last_words(run: Path) -> str:
    log = run.with_suffix(".log")
    return " ".join(log.read_text(errors="replace").split()[-60:]) if log.exists() else "it said nothing"


def _result(done: list[Round], iterations: int, device: str, plan: Plan) -> BenchmarkResult:
    same = sum(result.is_same for result in done)
    faults = sum((result.faults for result in done), Counter[str]())
    others = [
        result.problem or f"round {result.number}: weights {result.same_weights}, log {result.same_log}"
        for result in done
        if not result.is_same
    ]
    return BenchmarkResult(
        name="faults",
        about=f"{len(done)} digits runs of {iterations} iterations, killed up to {plan.kills} times each and resumed",
        columns=[Column("fault", "died by"), Column("times", "times")],
        rows=[{"fault": fault, "times": faults[fault]} for fault in FAULTS],
        ratios={"rounds that ended as the undisturbed run, weights and log, bit for bit": same / len(done)},
        notes=[*others, f"an undisturbed run works for {plan.seconds:.0f} s"],
        device=device,
    )


def main(
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of runs to kill and resume.")] = 5,
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="Training steps of each run.")] = 200,
    kills: Annotated[int, typer.Option("--kills", min=1, help="Highest number of times that a run is killed.")] = 3,
    start: Annotated[
        Start,
        typer.Option("--start", help="From scratch, from pretrained weights, or on cached features of a network."),
    ] = Start.SCRATCH,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Number of runs at a time.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the moments and kinds of death.")] = 0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Runs killed and resumed against an undisturbed one.

    Weights and log are compared bit for bit; exit code 1 where a round differs.
    """
    settings = (*SETTINGS, *STARTS[start])
    chosen = str(choose_device(check_device(device)))
    result = bench_faults(rounds, iterations, chosen, jobs, kills, seed, settings=settings)
    show(result, as_json)
    if min(result.ratios.values()) < 1:
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(run(main))
