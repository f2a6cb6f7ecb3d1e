"""Audits: images drawn by a known random rule, whose labels measure the model's error on the pool they come from.

Each draw is stored in RUN/audit.json with its probability (npmatch.runs.audit_record), so an audit can go on later. The
draws depend on the seed, the model and the pool alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from npmatch.data.images import SelectedImages
from npmatch.data.sources.audited import AUDITED, read_audited, write_audited
from npmatch.decide.doubt import doubts
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.files import name_as_text, name_from_text
from npmatch.labelling.tables import folder_candidates, labels_since, path_of
from npmatch.metrics.weighted_sample import Draw, draw_weighted
from npmatch.predict.batches import predict_store
from npmatch.predict.classifier import Classifier
from npmatch.runs.audit_record import Audit, AuditRecord, DrawnImage
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import RunData, load, open_run_data
from npmatch.training.checkpoint import checksum_of
from npmatch.types import ImageStore, Prediction

BATCH = 256
COUNT = 60  # images that are drawn by default


@dataclass(frozen=True)
class Pool:
    """N images to draw from."""

    names: list[str]  # N, as in a LabelBook
    images: ImageStore  # N
    prediction: Prediction | None = None  # of the N images, if it has been computed already
    problems: tuple[str, ...] = ()  # a line for each unreadable file

    def digest(self) -> str:
        """A hash of the names, by which a later call knows that it draws from the same pool."""
        return hashlib.sha256(b"\0".join(map(os.fsencode, self.names))).hexdigest()[:32]


class Auditor:
    """A run's model, and the pool that its error is measured on."""

    def __init__(
        self, run: str | Path, unlabeled: Path | None = None, data: Path | None = None, device: str | None = None
    ) -> None:
        """The pool is the run's unlabelled images, or those in the folder `unlabeled`."""
        self.run = Path(run)
        self.classifier: Classifier = load(run, device)
        self.folder = None if unlabeled is None else name_as_text(os.path.abspath(unlabeled))
        self.data: RunData | None = None
        if unlabeled is None or RunFolder(run).exists():
            self.data = open_run_data(run, data)
        self.model = checksum_of(RunFolder(run).model_weights)

    def draw(self, record: AuditRecord, count: int | None, weighted: bool, seed: int) -> tuple[Audit, Pool]:
        """Adds `count` draws to the audit of this pool by this rule, or begins one; `record` is changed, not saved.

        Without a count nothing is drawn while earlier draws have no label; else COUNT images are.
        """
        audit = find_audit(record, self.model, self.folder, weighted, seed)
        pool = self.pool([] if audit is None else audit.labelled_before, is_new=audit is None)
        if audit is None:
            audit = self._begin(pool, weighted, seed)
            record.audits.append(audit)
        elif audit.names != pool.digest():
            raise NPMatchError(
                f"{name_from_text(self.folder) if self.folder else self.run}: the images to draw from have changed "
                f"since the audit began ({audit.images} then, {len(pool.names)} now); restore them, or begin another "
                "audit with --seed"
            )
        if count is None and len(audit.labelled) < len(audit.draws):
            return audit, pool
        if not (draws := self._next_draws(audit, pool, COUNT if count is None else count)):
            raise NPMatchError(f"{self.run}: all {audit.images} images have been drawn already")
        self._add(audit, pool, draws)
        return audit, pool

    def pool(self, labelled_before: Collection[str], is_new: bool) -> Pool:
        """The images to draw from: a new audit leaves out those that people have answered since the run was started."""
        left_out = set(self._labelled_since()) if is_new else set(map(name_from_text, labelled_before))
        if self.folder is not None:
            folder = Path(name_from_text(self.folder))
            found = folder_candidates(self.classifier, folder, self.data, left_out)
            pool = Pool(found.names, found.images, found.prediction, found.problems)
        else:
            assert self.data is not None
            unlabeled = self.data.unlabeled(left_out)
            pool = Pool(unlabeled.names, unlabeled.images)
        if not pool.names:
            where = name_from_text(self.folder) if self.folder else self.run
            raise NPMatchError(f"{where}: there is no unlabelled image to draw; give others: --unlabeled DIR")
        return pool

    def _labelled_since(self) -> dict[str, str]:
        return {} if self.data is None else labels_since(self.data)

    def _begin(self, pool: Pool, weighted: bool, seed: int) -> Audit:
        names = pool.digest()
        facts = [self.model, self.folder or "", names, str(weighted), str(seed)]
        before = [name_as_text(name) for name in self._labelled_since()]
        return Audit(
            id=hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12],
            model=self.model,
            weighted=weighted,
            seed=seed,
            folder=self.folder,
            images=len(pool.names),
            names=names,
            labelled_before=before,
            mean_doubt=float(np.mean(self._doubts(self._predict(pool)))) if weighted else 0.0,
        )

    def _next_draws(self, audit: Audit, pool: Pool, count: int) -> list[Draw]:
        position = {name: at for at, name in enumerate(pool.names)}
        drawn = [position[name_from_text(draw.name)] for draw in audit.draws]
        seed = mix(audit.seed, audit.id)
        if audit.weighted:
            return list(islice(draw_weighted(self._doubts(self._predict(pool)), drawn, seed), count))
        order = np.random.default_rng(seed).permutation(len(pool.names))[len(drawn) : len(drawn) + count]
        left = len(pool.names) - len(drawn)
        return [Draw(int(at), 1 / (left - m), 1 / (left - m)) for m, at in enumerate(order)]

    def _add(self, audit: Audit, pool: Pool, draws: Sequence[Draw]) -> None:
        at = torch.tensor([draw.position for draw in draws])
        if pool.prediction is None:
            prediction = self._predict(Pool([], SelectedImages(pool.images, at)))
        else:
            prediction = Prediction(pool.prediction.probs[at], pool.prediction.entropy[at])
        doubt, labelled = self._doubts(prediction), self._labelled_since()
        batch = audit.draws[-1].batch + 1 if audit.draws else 1
        for row, draw in enumerate(draws):
            name = pool.names[draw.position]
            audit.draws.append(
                DrawnImage(
                    name=name_as_text(name),
                    path=name_as_text(path_of(pool.images, name, draw.position)),
                    batch=batch,
                    q=draw.q,
                    smallest_q=draw.smallest_q,
                    predicted=self.classifier.class_names[int(prediction.label[row])],
                    doubt=float(doubt[row]),
                    entropy=float(prediction.entropy[row]),
                    released=name in labelled,  # it is trained on already, by a run that starts from this one
                )
            )

    def _predict(self, pool: Pool) -> Prediction:
        if pool.prediction is not None:
            return pool.prediction
        return predict_store(self.classifier.model, pool.images, self.classifier.spec, self.classifier.device, BATCH)

    def _doubts(self, prediction: Prediction) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return doubts(prediction, self.classifier.calibration).numpy()


def find_audit(
    record: AuditRecord, model: str, folder: str | None = None, weighted: bool = False, seed: int = 0
) -> Audit | None:
    """The audit of this model, pool, rule and seed that was begun already."""
    wanted = (model, folder, weighted, seed)
    return next((a for a in record.audits if (a.model, a.folder, a.weighted, a.seed) == wanted), None)


def pending_rows(audit: Audit, pool: Pool, last_batch: bool) -> list[tuple[int, str, str]]:
    """Position in the pool, path and reason of the last images drawn, or of all that have no label yet."""
    position = {name: at for at, name in enumerate(pool.names)}
    batch = audit.draws[-1].batch
    # No probability: of a weighted draw, it would tell whoever labels where the model is unsure.
    reason = "audit: drawn by the model's doubt" if audit.weighted else "audit: drawn at random"
    return [
        (position[name_from_text(draw.name)], name_from_text(draw.path), reason)
        for draw in audit.draws
        if (draw.batch == batch if last_batch else draw.label is None)
    ]


def list_in_data(run: Path, audit: Audit, data: Path | None) -> str | None:
    """Lists an audit's images in audited.csv beside the data, for runs that are trained on the same folder later.

    Images that were released are removed from it. If it cannot be written, the result says so.
    """
    folder = _data_folder(run, audit, data)
    if folder is None:
        return None
    is_released = {
        os.path.relpath(name_from_text(draw.path), folder).replace(os.sep, "/"): draw.released for draw in audit.draws
    }
    listed = read_audited(folder) | dict.fromkeys(is_released, os.path.abspath(run))
    try:
        write_audited(folder, {name: by for name, by in listed.items() if not is_released.get(name)})
    except OSError as error:
        return f"{folder / AUDITED}: cannot be written ({error.strerror}); do not train on these images' labels"
    return None


def _data_folder(run: Path, audit: Audit, data: Path | None) -> Path | None:
    """The folder that a later run would be trained on; None for data sets that are no user's own files."""
    if audit.folder is not None:
        return Path(name_from_text(audit.folder))
    config = RunFolder(run).read_config().data
    root = data or (config.root if config.source == "folder" else None)
    return None if root is None else Path(root) if Path(root).is_dir() else Path(root).parent
