"""Predictions of any number of files, and what follows from them, written as they come, in constant memory."""

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

from npmatch.data.sources.folders import is_raw
from npmatch.data.sources.patterns import find_images, why_unread
from npmatch.decide import Decider, Decisions, Wishes
from npmatch.distributed.ranks import all_gather_object, local_share, on_rank_zero, process_group
from npmatch.errors import NPMatchError
from npmatch.predict.classifier import Classifier
from npmatch.predict.rows import Columns, Kind, RowFile, open_rows


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
    """Writes a row per readable image to `out`; returns how many, and a line for each file that is not one.

    `decider` says what to decide; by default, probabilities are at the run's temperature where it has one. Several
    ranks take a batch each at a time, and the first writes them in order: the file is that of one process. `flagged` is
    told how many images are withheld, and how many are unlike anything seen.
    """
    if not 1 <= top_k <= len(classifier.class_names):
        raise NPMatchError(
            f"top-k={top_k}: give a number from 1 to {len(classifier.class_names)}, the number of classes"
        )
    decider = decider or Decider(classifier.calibration, Wishes())
    written, problems = 0, list[str]()
    columns = columns_of(decider, top_k)
    flags = {name: place for place, (name, kind) in enumerate(columns.items()) if kind == "flag"}
    table: list[RowFile] = []  # the first rank's alone
    listed = hashlib.sha256()
    with process_group(classifier.device), ExitStack() as held:
        on_rank_zero(lambda: table.append(held.enter_context(open_rows(out, columns))))
        mine = _of_my_turns(_noted(find_images(paths), listed), batch_size)
        chunks = read_in_chunks(classifier, mine, batch_size)
        while True:
            readable, unreadable = next(chunks, ([], []))
            found = (_predict(classifier, readable, decider, top_k), unreadable)
            turn, seen_so_far = zip(*all_gather_object((found, listed.digest())), strict=True)
            if others := [number for number, seen in enumerate(seen_so_far) if seen != seen_so_far[0]]:
                raise NPMatchError(
                    f"rank {others[0]} finds other files than the first rank; give every machine the same"
                )
            for cells, unread in turn:
                if cells:
                    if flagged is not None:
                        flagged.update({name: sum(cells[place]) for name, place in flags.items()})
                    for file in table:
                        file.write([dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)])
                seen = len(cells[0]) if cells else 0
                written += seen
                problems += unread
                advance(seen + len(unread))
            if not any(turn[0]):  # the first rank has the first batch of every turn
                break
    return written, problems


def _noted(files: Iterator[Path], listed: Any) -> Iterator[Path]:
    """The files, each taken into a digest of all so far."""
    for file in files:
        listed.update(os.fsencode(file) + b"\0")
        yield file


def _of_my_turns(files: Iterator[Path], batch_size: int) -> Iterator[Path]:
    """The files of the batches that are this rank's: ranks take turns."""
    share = local_share()
    while turn := list(islice(files, share.world * batch_size)):
        yield from turn[share.block(batch_size)]


def _predict(
    classifier: Classifier, images: list[tuple[Path, Tensor]], decider: Decider, top_k: int
) -> list[list[Any]]:
    """The table's columns for some images; none where there are none."""
    if not images:
        return []
    decisions = decider(*classifier.describe(torch.stack([image for _, image in images])))
    return [[str(path) for path, _ in images], *_cells(decisions, classifier.class_names, top_k)]


def columns_of(decider: Decider, top_k: int = 1) -> Columns:
    """The columns of the table and what their cells hold."""
    columns: dict[str, Kind] = {"path": "text", "label": "text", "confidence": "number", "uncertainty": "number"}
    columns["probabilities"] = "numbers"
    for place in range(2, top_k + 1):
        columns |= {f"label_{place}": "text", f"confidence_{place}": "number"}
    optional: list[tuple[object, dict[str, Kind]]] = [
        (decider.temperature, {"temperature": "number"}),
        (decider.abstention, {"withheld": "flag"}),
        (decider.novelty, {"ood_score": "number", "ood": "flag"}),
        (decider.sets, {"prediction_set": "texts"}),
    ]
    for wished, more in optional:
        columns |= more if wished is not None else {}
    return columns


def _cells(d: Decisions, class_names: tuple[str, ...], top_k: int) -> list[list[Any]]:
    """The table's columns after the first."""
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
    if d.temperature is not None:
        cells.append([d.temperature] * len(p.label))
    cells += [tensor.tolist() for tensor in (d.withheld, d.ood_score, d.ood) if tensor is not None]
    if d.sets is not None:
        cells.append([[class_names[k] for k, inside in enumerate(row) if inside] for row in d.sets.tolist()])
    return cells


def read_in_chunks(
    classifier: Classifier, files: Iterable[Path], size: int
) -> Iterator[tuple[list[tuple[Path, Tensor]], list[str]]]:
    """`size` files after another: those that are images, decoded, and a line on each of the others."""

    def read(path: Path) -> Tensor | str:
        if is_raw(path.name) and (problem := why_unread(path)):
            return problem
        try:
            return classifier.read(path)
        except NPMatchError as error:
            return why_unread(path) or str(error)

    files = iter(files)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        while chunk := list(islice(files, size)):
            found = list(zip(chunk, pool.map(read, chunk), strict=True))
            yield (
                [(path, image) for path, image in found if isinstance(image, Tensor)],
                [problem for _, problem in found if isinstance(problem, str)],
            )
