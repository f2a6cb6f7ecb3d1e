"""The rows of a table of predictions: image files are read in batches, and each image gets a row."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.data.sources.folders import is_raw
from npmatch.data.sources.patterns import why_unread
from npmatch.decide import Decider, Decisions
from npmatch.errors import NPMatchError
from npmatch.predict.classifier import Classifier
from npmatch.predict.table import Columns, Kind, Row

COLUMNS: Columns = {  # the first ones of every table
    "path": "path",
    "label": "text",
    "confidence": "number",
    "uncertainty": "number",
    "probabilities": "numbers",
}


def predict_rows(classifier: Classifier, images: list[tuple[Path, Tensor]], decider: Decider, top_k: int) -> list[Row]:
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
    classifier: Classifier, files: Iterable[Path], size: int, threads: int | None = None
) -> Iterator[tuple[list[tuple[Path, Tensor]], list[str]]]:
    """Batches of `size` files: the decoded images (uint8 C H W) with their paths, and a line per unreadable file.

    They are decoded by `threads`, by default as many as the machine has cores.
    """

    def read(path: Path) -> Tensor | str:
        if is_raw(path.name) and (problem := why_unread(path)):
            return problem
        try:
            return classifier.read(path)
        except NPMatchError as error:
            return why_unread(path) or str(error)

    files = iter(files)
    with ThreadPoolExecutor(max_workers=threads or os.cpu_count()) as pool:
        while batch := list(islice(files, size)):
            results = list(zip(batch, pool.map(read, batch), strict=True))
            yield (
                [(path, image) for path, image in results if isinstance(image, Tensor)],
                [problem for _, problem in results if isinstance(problem, str)],
            )
