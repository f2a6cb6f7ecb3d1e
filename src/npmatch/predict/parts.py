"""Predictions of many files on a cluster: each part of the files goes to a worker, which keeps the model loaded."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

import torch

from npmatch.decide import Decider, Wishes
from npmatch.distributed.cluster import Cluster, map_in_order
from npmatch.errors import NPMatchError
from npmatch.predict.classifier import Classifier, load_model
from npmatch.predict.rows import predict_rows, read_in_batches
from npmatch.predict.saved import MODEL_WEIGHTS
from npmatch.predict.table import Row
from npmatch.training.checkpoint import checksum_of
from npmatch.user_code import is_trusting


@dataclass(frozen=True)
class Request:
    """What every worker has to know to predict its parts as one process would."""

    folder: str  # of the model
    checksum: str  # of its weights
    device: str
    cores: int
    wishes: Wishes
    top_k: int
    batch_size: int
    trust_code: bool


def predict_on_cluster(
    cluster: Cluster, classifier: Classifier, files: Iterable[Path], batch_size: int, decider: Decider, top_k: int
) -> Generator[tuple[list[Row], list[str]]]:
    """Rows of predictions, and a line per unreadable file, batch by batch in the order of the files.

    A part consists of whole batches, so that the model sees the same batches as in one process.
    """
    if classifier.folder is None:
        raise NPMatchError(
            f"--cluster {cluster.name}: the model has no folder that workers could load it from; save it"
        )
    folder = classifier.folder.absolute()
    request = Request(
        str(folder),
        checksum_of(folder / MODEL_WEIGHTS),
        cluster.device,
        cluster.cores,
        decider.wishes,
        top_k,
        batch_size,
        is_trusting(),
    )
    size = max(1, cluster.files_per_call // batch_size) * batch_size
    with closing(map_in_order(cluster, partial(predict_part, request), _parts(iter(files), size))) as parts:
        for results in parts:
            yield from results


def _parts(files: Iterator[Path], size: int) -> Iterator[list[str]]:
    while part := list(islice(files, size)):
        yield [os.fspath(file) for file in part]


def predict_part(request: Request, files: list[str]) -> list[tuple[list[Row], list[str]]]:
    """On a worker: rows and lines about unreadable files of each batch of a part."""
    if not any(map(os.path.lexists, files)):
        raise NPMatchError(
            f"{files[0]}: not on {socket.gethostname()}; put the images on storage that all machines share"
        )
    classifier, decider = open_model(request)
    batches = read_in_batches(classifier, map(Path, files), request.batch_size, threads=request.cores)
    return [(predict_rows(classifier, images, decider, request.top_k), unreadable) for images, unreadable in batches]


@lru_cache(maxsize=1)
def open_model(request: Request) -> tuple[Classifier, Decider]:
    """The model and the decisions of a request, loaded once by each process of a worker."""
    torch.set_num_threads(request.cores)
    folder = Path(request.folder)
    classifier = load_model(folder, request.device, request.trust_code)
    if checksum_of(folder / MODEL_WEIGHTS) != request.checksum:
        raise NPMatchError(
            f"{folder}: holds another model on {socket.gethostname()}; put it on storage that all machines share"
        )
    return classifier, Decider(classifier.calibration, request.wishes)
