"""Predictions and decisions for any number of image files, written to a table in constant memory."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from npmatch.data.loading import check_batch_size
from npmatch.data.sources.patterns import find_images
from npmatch.decide import Decider, Wishes
from npmatch.distributed.cluster import Cluster
from npmatch.distributed.ranks import all_gather_object, local_share, on_rank_zero, process_group
from npmatch.errors import NPMatchError
from npmatch.predict.classifier import Classifier
from npmatch.predict.parts import predict_on_cluster
from npmatch.predict.rows import COLUMNS, columns_of, predict_rows, read_in_batches
from npmatch.predict.table import Row, TableFile, column_names, open_table


def predict_files(
    classifier: Classifier,
    paths: Iterable[str | Path],
    out: Path,
    batch_size: int = 128,
    advance: Callable[[int], None] = lambda n: None,
    decider: Decider | None = None,
    top_k: int = 1,
    flagged: Counter[str] | None = None,
    cluster: Cluster | None = None,
) -> tuple[int, list[str]]:
    """Writes a row per readable image to `out`; returns the number of rows, and a line for each unreadable file.

    By default, probabilities are at the run's temperature if it has one; a `decider` decides more. `advance` is called
    with the number of files done. `flagged` counts the images that are withheld and those that are out-of-distribution.
    With several ranks, rank zero writes the same file that one process would; with a `cluster`, this process does, and
    the machines of the cluster predict.
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
        if cluster is None:
            results = _predict_by_turns(classifier, paths, batch_size, decider, top_k)
        else:
            results = predict_on_cluster(cluster, classifier, find_images(paths), batch_size, decider, top_k)
        open_tables.callback(results.close)  # which calls back the parts that are under way
        for rows, unreadable in results:
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
) -> Generator[tuple[list[Row], list[str]]]:
    """Rows of predictions, and a line per unreadable file, batch by batch in the order of the files.

    In each turn every rank predicts one batch, then all ranks gather the results of all.
    """
    digest = hashlib.sha256()  # of the names of the files so far
    files = _local_files(_add_names(digest, find_images(paths)), batch_size)
    batches = read_in_batches(classifier, files, batch_size)
    while True:
        images, unreadable = next(batches, ([], []))
        result = (predict_rows(classifier, images, decider, top_k), unreadable)
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
