"""Whether audits keep their promises: a thousand audits of one model, of whose pool every label is known.

Each repetition draws images as `npmatch audit` does, at random and by the model's doubt (--weighted), and computes the
error with its interval. The true error of the pool is known, so coverage, bias and spread can be counted. A last user
looks after every 30 labels and stops as soon as the interval excludes a target, which is the true error itself: nothing
misleads him more often.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from scipy.stats import binomtest

from benchmarks.command_line import run, show
from benchmarks.result import BenchmarkResult, Column
from npmatch.cli.shared import DeviceOption, JsonOption, RunArgument, RunDataOption, check_device
from npmatch.data.labels import class_index, read_label_table
from npmatch.decide.doubt import doubts
from npmatch.errors import NPMatchError
from npmatch.metrics.intervals import Interval, clopper_pearson
from npmatch.metrics.weighted_sample import Floats, betting_interval, draw_weighted, weighted_error
from npmatch.predict.batches import predict_store
from npmatch.runs.audit_record import Audit, DrawnImage
from npmatch.runs.audit_result import spend
from npmatch.runs.open import UnlabeledImages, load, open_run_data
from npmatch.types import Dataset

SIZES = (30, 60, 100)
LEVEL = 0.9
LOOKS = (30, 60, 90, 120)
SIGNIFICANCE = 0.01  # of the test that an interval covers less often than it promises


class Pool(NamedTuple):
    """A model's answers on a pool."""

    doubt: Floats  # N: the model's own probability that its answer is wrong
    wrong: Floats  # N: 1 where the model is wrong

    @property
    def error(self) -> float:
        """The error rate that audits estimate."""
        return float(self.wrong.mean())


class Sample(NamedTuple):
    """What one audit gave."""

    error: float
    interval: Interval


def read_pool(folder: Path, truth: Path | None, data: Path | None, device: str | None) -> Pool:
    """The answers of a run's model on its unlabelled images, compared with labels that the run has not seen."""
    classifier, opened = load(folder, device), open_run_data(folder, data)
    pool = opened.unlabeled()
    y = true_labels(pool, opened.dataset, truth)
    found = predict_store(classifier.model, pool.images, classifier.spec, classifier.device, 256)
    wrong = found.label.numpy() != y
    return Pool(doubts(found, classifier.calibration).numpy(), wrong.astype(float))


def true_labels(
    pool: UnlabeledImages, dataset: Dataset, truth: Path | None
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The classes of a run's unlabelled images: from a table, the data set, or file names such as Forest_12.jpg."""
    if truth is not None:
        given = {row.path: class_index(row.label, dataset.class_names, row.where) for row in read_label_table(truth)}
        return np.array([given[name] for name in pool.names])
    known = dataset.train.labels[pool.positions]
    if bool((known >= 0).all()):
        return known.numpy()
    words = [Path(name).name.partition("_")[0] for name in pool.names]
    if not set(words) <= set(dataset.class_names):
        raise NPMatchError("the classes of the unlabelled images are not known; give a table path,label: --truth FILE")
    return np.array([dataset.class_names.index(word) for word in words])


def plain_audits(pool: Pool, seed: int) -> Iterator[tuple[int, Sample]]:
    """The result of a random sample at every size."""
    order = np.random.default_rng([seed, 0]).permutation(len(pool.wrong))
    for n in SIZES:
        errors = int(pool.wrong[order[:n]].sum())
        yield n, Sample(errors / n, clopper_pearson(errors, n, LEVEL))


def weighted_audits(pool: Pool, seed: int) -> Iterator[tuple[int, Sample]]:
    """The result of a sample by doubt at every size."""
    draws = list(islice(draw_weighted(pool.doubt, (), seed), max(SIZES)))
    at = [draw.position for draw in draws]
    q, smallest = np.array([draw.q for draw in draws]), np.array([draw.smallest_q for draw in draws])
    size, mean = len(pool.doubt), float(pool.doubt.mean())
    for n in SIZES:
        wrong, doubt = pool.wrong[at[:n]], pool.doubt[at[:n]]
        interval = betting_interval(wrong, q[:n], smallest[:n], size, LEVEL)
        yield n, Sample(weighted_error(wrong, doubt, q[:n], size, mean), interval)


def user_who_stops(pool: Pool, seed: int, pays: bool) -> tuple[int, Interval]:
    """Labels and interval with which a user stops who looks after every 30 labels, with and without paying for it."""
    order = np.random.default_rng([seed, 1]).permutation(len(pool.wrong))[: max(LOOKS)]
    audit = Audit("", "", False, 0, None, len(pool.wrong), "", [], 0.0)
    for n in LOOKS:
        audit.draws = [
            DrawnImage("", "", 1, 1, 1, "right", 0, 0, "wrong" if pool.wrong[i] else "right") for i in order[:n]
        ]
        level = 1 - spend(audit, LEVEL, interim=n < max(LOOKS)).alpha if pays else LEVEL
        interval = clopper_pearson(int(pool.wrong[order[:n]].sum()), n, level)
        if not interval.low <= pool.error <= interval.high:
            break
    return n, interval


def judge(rule: str, n: object, pool: Pool, samples: list[Sample]) -> dict[str, Any]:
    """Coverage, bias and spread of many audits of one kind; rates in %."""
    covered = sum(one.interval.low <= pool.error <= one.interval.high for one in samples)
    misses = 100 * (np.array([one.error for one in samples]) - pool.error)
    return {
        "rule": rule,
        "labels": n,
        "bias": float(misses.mean()),
        "standard_error": float(misses.std(ddof=1) / np.sqrt(len(samples))),
        "spread": float(misses.std(ddof=1)),
        "width": float(np.mean([100 * (one.interval.high - one.interval.low) for one in samples])),
        "coverage": 100 * covered / len(samples),
        "covers": bool(binomtest(covered, len(samples), LEVEL, "less").pvalue > SIGNIFICANCE),
    }


def bench_audits(pool: Pool, about: str, repetitions: int = 1000) -> BenchmarkResult:
    """Audits one pool many times by every rule."""
    rules: dict[str, Callable[[Pool, int], Iterator[tuple[int, Sample]]]] = {
        "random": plain_audits,
        "--weighted": weighted_audits,
    }
    rows = []
    for rule, audits in rules.items():
        found: dict[int, list[Sample]] = {n: [] for n in SIZES}
        for seed in range(repetitions):
            for n, sample in audits(pool, seed):
                found[n].append(sample)
        rows += [judge(rule, n, pool, samples) for n, samples in found.items()]
    for plain, weighted in zip(rows[: len(SIZES)], rows[len(SIZES) :], strict=True):
        weighted["factor"] = (plain["spread"] / weighted["spread"]) ** 2
    for pays, rule in ((True, "stops early, --interim"), (False, "stops early, unpaid")):
        stops = [user_who_stops(pool, seed, pays) for seed in range(repetitions)]
        intervals = [Sample(pool.error, interval) for _, interval in stops]
        row = judge(rule, f"{np.mean([n for n, _ in stops]):.0f} on average", pool, intervals)
        rows.append({key: row[key] for key in ("rule", "labels", "width", "coverage", "covers")})
    return BenchmarkResult(
        name="audits",
        about=f"{about}: {len(pool.wrong):,} images, {pool.error:.2%} error, {repetitions:,} audits of each kind",
        notes=[f"mean doubt of the model: {pool.doubt.mean():.2%}"],
        columns=[
            Column("rule", "images drawn"),
            Column("labels", "labels"),
            Column("bias", "bias, points", "{:+.2f}"),
            Column("standard_error", "its standard error", "{:.2f}"),
            Column("spread", "spread (sd), points", "{:.2f}"),
            Column("factor", "labels a random sample needs for it", "× {:.1f}"),
            Column("width", "mean width of the 90 % interval", "{:.1f}"),
            Column("coverage", "it covers, %", "{:.1f}"),
            Column("covers", "as promised", "{}"),
        ],
        rows=rows,
    )


def main(
    folder: RunArgument,
    truth: Annotated[
        Path | None, typer.Option("--truth", help="CSV with the columns path,label of the run's unlabelled images.")
    ] = None,
    repetitions: Annotated[int, typer.Option("--repetitions", min=2, help="Number of audits of each kind.")] = 1000,
    data: RunDataOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Coverage, bias and spread of npmatch audit, by repetition."""
    show(bench_audits(read_pool(folder, truth, data, check_device(device)), str(folder), repetitions), as_json)


if __name__ == "__main__":
    sys.exit(run(main))
