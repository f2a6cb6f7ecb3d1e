"""Predictions and decisions for any number of image files, written to a table in constant memory."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.data.loading import check_batch_size
from npmatch.data.sources.folders import is_raw
from npmatch.data.sources.patterns import find_images, why_unread
from npmatch.decide import Decider, Decisions, Wishes
from npmatch.distributed.ranks import all_gather_object, local_share, on_rank_zero, process_group
from npmatch.errors import NPMatchError
from npmatch.predict.classifier import Classifier
from npmatch.predict.table import Columns, Kind, Row, TableFile, column_names, open_table

COLUMNS: Columns = {  # the first ones of every table
    "path": "path",
    "label": "text",
    "confidence": "number",
    "uncertainty": "number",
    "probabilities": "numbers",
}


def predict_files(
    classifier: Classifier,
    paths: Iterable[str | Path],
    out: Path,
    batch_size: int = 128,
    advance: Callable[[int], None] = lambda n: None,
    decider: Decider | None = None,
    top_k: int = 1,
    flagged: Counter[str] | None = None,
) -> tuple[int, list[str]]:
    """Writes a row per readable image to `out`; returns the number of rows, and a line for each unreadable file.

    By default, probabilities are at the run's temperature if it has one; a `decider` decides more. `advance` is called
    with the number of files done. `flagged` counts the images that are withheld and those that are out-of-distribution.
    With several ranks, rank zero writes the same file that one process would.
    """
    if not 1 <= top_k <= len(classifier.class_names):
        raise NPMatchError(
            f"top-k={top_k}: give a number from 1 to {len(classifier.class_names)}, the number of classes"
        )
    check_batch_size(batch_size)
    decider = decider or Decider(classifier.calibration, Wishes())
    columns = columns_of(decider, top_k, classifier.estimates_outliers)
    flags = [name for name, kind in columns.items() if kind == "flag"]
    tables: list[TableFile] = []  # one on rank zero, none on the others
    written, problems = 0, list[str]()
    with process_group(classifier.device), ExitStack() as open_tables:
        on_rank_zero(lambda: tables.append(open_tables.enter_context(open_table(out, columns))))
        for rows, unreadable in _predict_by_turns(classifier, paths, batch_size, decider, top_k):
            if rows:
                for table in tables:
                    table.write(rows)
                if flagged is not None:
                    flagged.update({name: sum(row[name] for row in rows) for name in flags})
            written += len(rows)
            problems += unreadable
            advance(len(rows) + len(unreadable))
    return written, problems


def is_prediction_table(path: Path) -> bool:
    """Whether a file is a table that `predict_files` wrote."""
    first = list(COLUMNS)
    return column_names(path)[: len(first)] == first


def _predict_by_turns(
    classifier: Classifier, paths: Iterable[str | Path], batch_size: int, decider: Decider, top_k: int
) -> Iterator[tuple[list[Row], list[str]]]:
    """Rows of predictions, and a line per unreadable file, batch by batch in the order of the files.

    In each turn every rank predicts one batch, then all ranks gather the results of all.
    """
    digest = hashlib.sha256()  # of the names of the files so far
    files = _local_files(_add_names(digest, find_images(paths)), batch_size)
    batches = read_in_batches(classifier, files, batch_size)
    while True:
        images, unreadable = next(batches, ([], []))
        result = (_predict(classifier, images, decider, top_k), unreadable)
        results, digests = zip(*all_gather_object((result, digest.digest())), strict=True)
        for rank, other in enumerate(digests):
            if other != digests[0]:
                raise NPMatchError(f"rank {rank} finds other files than rank 0; give every machine the same files")
        yield from results
        if not any(results[0]):  # rank zero has the first batch of every turn
            return


def _add_names(digest: Any, files: Iterator[Path]) -> Iterator[Path]:
    """The same files; the name of each one that is taken is added to the digest."""
    for file in files:
        digest.update(os.fsencode(file) + b"\0")
        yield file


def _local_files(files: Iterator[Path], batch_size: int) -> Iterator[Path]:
    """The files in this rank's batches."""
    share = local_share()
    while turn := list(islice(files, share.world * batch_size)):
        yield from turn[share.block(batch_size)]


def _predict(classifier: Classifier, images: list[tuple[Path, Tensor]], decider: Decider, top_k: int) -> list[Row]:
    """A row of the table for each image."""
    if not images:
        return []
    decisions = decider(*classifier.describe(torch.stack([image for _, image in images])))
    cells = [[str(path) for path, _ in images], *_cells(decisions, classifier.class_names, top_k)]
    columns = columns_of(decider, top_k, classifier.estimates_outliers)
    return [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]


def columns_of(decider: Decider, top_k: int = 1, with_outliers: bool = False) -> Columns:
    """The columns of the table: name → kind of cell."""
    columns = dict(COLUMNS)
    for place in range(2, top_k + 1):
        columns |= {f"label_{place}": "text", f"confidence_{place}": "number"}
    optional: list[tuple[object, dict[str, Kind]]] = [
        (with_outliers or None, {"outlier": "number"}),
        (decider.temperature, {"temperature": "number"}),
        (decider.abstention, {"withheld": "flag"}),
        (decider.novelty, {"ood_score": "number", "ood": "flag"}),
        (decider.sets, {"prediction_set": "texts"}),
    ]
    for decision, its_columns in optional:
        columns |= its_columns if decision is not None else {}
    return columns


def _cells(d: Decisions, class_names: tuple[str, ...], top_k: int) -> list[list[Any]]:
    """The cells of every column but `path`, column by column."""
    p = d.prediction
    cells: list[list[Any]] = [
        [class_names[i] for i in p.label.tolist()],
        p.confidence.tolist(),
        p.entropy.tolist(),
        p.probs.tolist(),
    ]
    likeliest = p.probs.sort(dim=-1, descending=True, stable=True)
    for place in range(1, top_k):
        cells.append([class_names[i] for i in likeliest.indices[:, place].tolist()])
        cells.append(likeliest.values[:, place].tolist())
    if p.outlier is not None:
        cells.append(p.outlier.tolist())
    if d.temperature is not None:
        cells.append([d.temperature] * len(p.label))
    cells += [tensor.tolist() for tensor in (d.withheld, d.ood_score, d.ood) if tensor is not None]
    if d.sets is not None:
        cells.append([[class_names[k] for k, inside in enumerate(row) if inside] for row in d.sets.tolist()])
    return cells


def read_in_batches(
    classifier: Classifier, files: Iterable[Path], size: int
) -> Iterator[tuple[list[tuple[Path, Tensor]], list[str]]]:
    """Batches of `size` files: the decoded images (uint8 C H W) with their paths, and a line per unreadable file."""

    def read(path: Path) -> Tensor | str:
        if is_raw(path.name) and (problem := why_unread(path)):
            return problem
        try:
            return classifier.read(path)
        except NPMatchError as error:
            return why_unread(path) or str(error)

    files = iter(files)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        while batch := list(islice(files, size)):
            results = list(zip(batch, pool.map(read, batch), strict=True))
            yield (
                [(path, image) for path, image in results if isinstance(image, Tensor)],
                [problem for _, problem in results if isinstance(problem, str)],
            )
