"""The answers to the images of an audit: from filled-in tables, or one by one from the page.

They are stored beside the run (npmatch.runs.audit_record) and nowhere else: a label that a model is trained on measures
nothing. Images that are released are the exception, and releasing them is a step of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from npmatch.data.labels import LabelRow
from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.files import name_from_text
from npmatch.labelling.audit import find_audit
from npmatch.labelling.files import read_label_file
from npmatch.predict.saved import ModelSpec, load_calibration
from npmatch.runs.audit_record import NONE_OF_THESE, Audit, AuditRecord, DrawnImage, exclusive
from npmatch.runs.audit_result import LEVEL, AuditResult, measure, spend, usual_abstention
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import existing_run
from npmatch.training.checkpoint import checksum_of


class AuditAnswers:
    """The answers to the plain audit of a run's present model, given one by one; a change is on disk when it returns.

    It is the audit that `npmatch audit RUN` goes on with: images drawn at random, with seed 0, from the run's own
    unlabelled ones.
    """

    def __init__(self, run: str | Path) -> None:
        """Nothing need have been drawn yet."""
        self.run = Path(run)
        folder = existing_run(run)
        self.classes = ModelSpec.load(folder.model_config).class_names
        self.model = checksum_of(folder.model_weights)
        self._lock = threading.RLock()
        self._held: AuditRecord | None = None  # inside `exclusive`
        self._read: tuple[object, AuditRecord] = (None, AuditRecord())  # the record, with the stamp of its file

    @property
    def audit(self) -> Audit | None:
        """The audit as it is now; None if no image was drawn yet."""
        with self._lock:
            return find_audit(self._record(), self.model)

    @property
    def labels(self) -> dict[str, str]:
        """Name of each image that has an answer → its class, or NONE_OF_THESE."""
        draws = [] if (audit := self.audit) is None else audit.draws
        return {name_from_text(draw.name): draw.label for draw in draws if draw.label is not None}

    @contextmanager
    def exclusive(self) -> Iterator[AuditRecord]:
        """The record, which nobody else may change inside the `with`."""
        with self._lock:
            if self._held is not None:
                yield self._held
                return
            with exclusive(self.run) as record:
                self._held = record
                try:
                    yield record
                finally:
                    self._held = None

    def change(self, changes: Mapping[str, str | None]) -> None:
        """Answers for images, or takes answers back (None), all of them or none."""
        for label in changes.values():
            if label not in (*self.classes, NONE_OF_THESE, None):
                raise NoSuchChoiceError("class", str(label), [*self.classes, NONE_OF_THESE])
        with self.exclusive() as record:
            audit = find_audit(record, self.model)
            draws = {} if audit is None else {name_from_text(draw.name): draw for draw in audit.draws}
            shown = set() if audit is None else {draw.name for draw in audit.labelled[: _looked_at(audit)]}
            for name in changes:
                if name not in draws:
                    raise NPMatchError(f"{name}: was not drawn by the audit of {self.run}")
                if draws[name].name in shown:
                    raise NPMatchError(
                        f"{name}: the error with this answer has been shown; correct it in a table: npmatch audit "
                        f"{self.run} FILE"
                    )
            for name, label in changes.items():
                draws[name].label = label
            record.save(self.run)

    def _record(self) -> AuditRecord:
        """The record in the file, which is read again only if it has changed."""
        if self._held is not None:
            return self._held
        file = RunFolder(self.run).audit
        try:
            status = file.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            stamp = None
        if self._read[0] != stamp:
            self._read = stamp, AuditRecord.load(self.run)
        return self._read[1]


def answer_rows(audit: Audit, run: Path) -> list[LabelRow]:
    """The images of an audit with their answers, as the rows of a filled-in table."""
    where = str(RunFolder(run).audit)
    return [LabelRow(where, name_from_text(draw.path), draw.label or "") for draw in audit.draws]


def read_answers(
    run: Path, tables: Sequence[Path], level: float = LEVEL, interim: bool = False, abstain: float | None = None
) -> AuditResult:
    """The error by the labels in filled-in tables and those read before; they are stored beside the run."""
    rows = [row for table in tables for row in read_label_file(table)]
    folder = existing_run(run)
    classes = ModelSpec.load(folder.model_config).class_names
    abstention = usual_abstention(load_calibration(folder.path, len(classes)), abstain)
    with exclusive(run) as record:
        audit = take_answers(record, rows, checksum_of(folder.model_weights), classes, run)
        look = spend(audit, level, interim)
        record.save(run)
    return measure(audit, look, abstention)


def look_at_answers(run: Path, level: float = LEVEL, interim: bool = False) -> None:
    """Looks at the answers that were given on the page, one by one, and that nobody has looked at yet."""
    if not any(map(has_new_answers, AuditRecord.load(run).audits)):
        return
    model = checksum_of(RunFolder(run).model_weights)
    with exclusive(run) as record:
        for audit in record.audits:
            if audit.model == model and has_new_answers(audit):
                spend(audit, level, interim)
        record.save(run)


def has_new_answers(audit: Audit) -> bool:
    """Whether there are answers that count and that nobody has looked at."""
    return len(audit.labelled) > _looked_at(audit)


def _looked_at(audit: Audit) -> int:
    return max((look.n for look in audit.looks), default=0)


def take_answers(record: AuditRecord, rows: Iterable[LabelRow], model: str, classes: Sequence[str], run: Path) -> Audit:
    """Enters the labels of filled-in tables into the audit that drew their images, which is returned.

    Every image drawn together with one of them, or before it, must then have a label: who leaves out the difficult ones
    would measure something else.
    """
    rows = list(rows)
    audit = _audit_of(record, rows, model, run)
    draws, answered = _by_path(audit), 0
    for row in rows:
        label = row.label if row.label in classes else row.label.strip()
        draw = draws[_known_path(row.path, draws) or row.path]
        if label not in (*classes, NONE_OF_THESE, ""):
            unknown = NoSuchChoiceError("class", label, [*classes, NONE_OF_THESE])
            raise NPMatchError(f"{row.where}: {unknown} ('{NONE_OF_THESE}' is an answer too)")
        if label:
            draw.label, answered = label, max(answered, draw.batch)
    if not answered:
        raise NPMatchError(f"{rows[0].where.partition(',')[0]}: no label is filled in; fill in the column label")
    if empty := [draw for draw in audit.draws if draw.batch <= answered and draw.label is None]:
        raise NPMatchError(
            f"{run}: {len(empty)} of the images drawn so far have no label, the first one {empty[0].path}; fill in all "
            f"of them ('{NONE_OF_THESE}' for an image of no class), and give all tables at once"
        )
    return audit


def release(record: AuditRecord, rows: Iterable[LabelRow], run: Path) -> list[Audit]:
    """Lets the images of a table be trained on; returns the audits that drew them."""
    changed = []
    rows = list(rows)
    for audit in record.audits:
        draws = _by_path(audit)
        if found := [path for row in rows if (path := _known_path(row.path, draws))]:
            changed.append(audit)
            for path in found:
                draws[path].released = True
    known = [_by_path(audit) for audit in record.audits]
    for row in rows:
        if not any(_known_path(row.path, draws) for draws in known):
            raise NPMatchError(f"{row.where}: {row.path} was not drawn by an audit of {run}")
    return changed


def _audit_of(record: AuditRecord, rows: Sequence[LabelRow], model: str, run: Path) -> Audit:
    """The audit of the present model in which all rows were drawn; the last one if there are several."""
    if not rows:
        raise NPMatchError(f"{run}: the table has no row; give the one that npmatch audit -o wrote, filled in")
    if not record.audits:
        raise NPMatchError(f"{run}: no image was drawn for an audit of it yet; npmatch audit {run} -n 60 -o check.csv")
    strangers: dict[str, LabelRow] = {}
    for audit in reversed(record.audits):
        draws = _by_path(audit)
        stranger = next((row for row in rows if _known_path(row.path, draws) is None), None)
        if stranger is not None:
            strangers.setdefault(audit.id, stranger)
        elif audit.model == model:
            return audit
        else:
            raise NPMatchError(
                f"{rows[0].where.partition(',')[0]}: was drawn for another model than the present one of {run}; draw "
                f"anew: npmatch audit {run} -n 60 -o check.csv"
            )
    stranger = next(iter(strangers.values()))
    raise NPMatchError(
        f"{stranger.where}: {stranger.path} was not drawn by this audit of {run}; give the table that npmatch audit "
        "-o wrote for this run and pool"
    )


def _by_path(audit: Audit) -> dict[str, DrawnImage]:
    return {name_from_text(draw.path): draw for draw in audit.draws}


def _known_path(path: str, draws: Mapping[str, DrawnImage]) -> str | None:
    """The path of a draw that a table's path means."""
    spellings = (path, path.strip(), os.path.abspath(path))
    return next((spelling for spelling in spellings if spelling in draws), None)
