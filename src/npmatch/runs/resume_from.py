"""A run that starts from another: its weights, its split, its labels and those people have given since."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.algorithms import Algorithm
from npmatch.config.tree import Config, make_config
from npmatch.data import Dataset, Split
from npmatch.data.labels import encode_label_table, positions_by_name, read_label_table
from npmatch.data.split import with_more_labels
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.heads import Bank
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import open_run_data
from npmatch.training import Checkpoints, Display, Trainer, load_tensors

SHARE = 3  # the first continuation takes 1/SHARE of the iterations that training from nothing took
KEPT_KEYS = ("data.labels", "data.validation", "data.split", "data.include_labeled", "algorithm.name", "recipe")


def config_from_run(source: RunFolder, run: RunFolder, given: Mapping[str, Any]) -> Config:
    """The configuration of `source` with what was `given` over it, for a `run` that starts from its weights."""
    for key in given.keys() & set(KEPT_KEYS):
        raise NPMatchError(
            f"{key}={given[key]}: a run with --resume-from keeps the split and the algorithm of {source}; leave it "
            "out, or train a new run without --resume-from"
        )
    before = source.read_config()
    iterations = before.training.iterations
    if before.training.start_from is None:
        iterations = -(-iterations // SHARE)
    own = {
        "training.start_from": str(source),
        "training.iterations": iterations,
        "data.given_labels": str(run.given_labels),
    }
    return make_config({}, {**before.flat(), **own, **given})


def next_folder(run: Path) -> Path:
    """runs/photos → runs/photos-round2 → runs/photos-round3."""
    name, _, number = run.name.rpartition("-round")
    if name and number.isdecimal():
        return run.with_name(f"{name}-round{int(number) + 1}")
    return run.with_name(f"{run.name}-round2")


def labels_so_far(run: Path, data: str | None) -> dict[str, str]:
    """The labels people had given before `run`, and those they have given since, which win."""
    opened = open_run_data(run, data)
    table = opened.config.data.given_labels
    before = {} if table is None else {row.path: row.label for row in read_label_table(Path(table))}
    book = opened.book()
    for where, labels, remedy in ((table, before, ""), (book.path, book.labels, ", or take its line out")):
        if gone := next((name for name in labels if os.path.isabs(name) and not os.path.isfile(name)), None):
            raise NPMatchError(f"{where}: the image {gone}, which has a label there, is gone; restore it{remedy}")
    return before | book.labels


@contextmanager
def given_labels_written(config: Config, run: RunFolder) -> Iterator[None]:
    """The labels so far as a file of the new run, which later changes to the label book leave alone.

    Taken away again where the run turns out to be impossible before it is one.
    """
    start, table = config.training.start_from, config.data.given_labels
    if start is None or table is None or run.exists():
        yield
        return
    content = encode_label_table(labels_so_far(Path(start), config.data.root))
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(table), content)
    except OSError as error:
        raise NPMatchError(f"{run}: cannot be written ({error.strerror}); choose another --out") from error
    try:
        yield
    finally:
        if not run.exists():
            Path(table).unlink(missing_ok=True)
            with suppress(OSError):  # where something else lies there too
                run.path.rmdir()


def split_from_run(config: Config, dataset: Dataset) -> Split:
    """The split of the run it starts from, in which the images given a label since are labelled ones."""
    start, table = Path(str(config.training.start_from)), config.data.given_labels
    before = open_run_data(start, config.data.root)
    place, old = positions_by_name(dataset.train), positions_by_name(before.dataset.train)
    if dataset.class_names != before.dataset.class_names or list(place)[: len(old)] != list(old):
        raise NPMatchError(f"training.start_from={start}: that run was trained on other images or classes")
    given = [] if table is None else [place[row.path] for row in read_label_table(Path(table))]
    return with_more_labels(before.split, dataset, torch.tensor(given, dtype=torch.int64))


def start_from_run(trainer: Trainer, source: RunFolder) -> None:
    """Another run's weights, as the weights and as their average; momentum and schedule stay at their beginning."""
    load_state(trainer.algorithm, _saved_state(source), origin=f"training.start_from={source}")
    trainer.update.ema.load_state_dict(trainer.update.ema.live)


def load_state(algorithm: Algorithm, saved: Mapping[str, Tensor], origin: str) -> None:
    """The state of an earlier training; `origin` names it in errors.

    A module whose buffers are of another number of images (a curriculum) starts afresh; weights must fit.
    """
    fresh = algorithm.state_dict()
    misfits = {name for name, t in fresh.items() if name not in saved or saved[name].shape != t.shape}
    weights = {name for name, _ in algorithm.named_parameters()}
    if bad := misfits & weights:
        raise NPMatchError(
            f"{origin}: its weights do not fit this configuration ({min(bad)}); keep backbone and algorithm"
        )
    afresh = {name.rpartition(".")[0] for name in misfits}
    fitting = {name: saved[name] for name in fresh if name in weights or name.rpartition(".")[0] not in afresh}
    algorithm.load_state_dict({**fresh, **fitting})
    for name, module in algorithm.named_modules():
        if isinstance(module, Bank) and name in afresh and f"{name}.rows" in saved:
            # Saved at another length: a finished model's bank has one row. Its mean is the first row of this one.
            module.rows[0] = saved[f"{name}.rows"][: int(saved[f"{name}.filled"])].mean(0)


def _saved_state(source: RunFolder) -> dict[str, Tensor]:
    """The last checkpoint with its averaged weights; without checkpoints, the finished model."""
    latest = Checkpoints(source.checkpoints).load_latest(Display("", 0).warn)
    if latest is not None:
        return {**latest[1]["algorithm"], **latest[1]["ema"]}
    if not source.model_weights.is_file():
        raise NPMatchError(f"{source}: has neither a checkpoint nor a model to start from; let it train first")
    return {f"model.{name}": t for name, t in load_tensors(source.model_weights)[0].items()}
