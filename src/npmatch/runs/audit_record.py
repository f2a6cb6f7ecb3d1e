"""RUN/audit.json: which images were drawn to measure the model's error, how, and the labels people gave them.

Every draw is stored with its probability, so that an audit can go on later, and so that its images stay out of
training until somebody releases them by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import pydantic

from npmatch.errors import NPMatchError
from npmatch.files import name_from_text, one_writer, read_regular, remove_leftovers, write_atomically
from npmatch.runs.folder import RunFolder
from npmatch.types import NonNegativeFloat, PositiveInt, Share

FORMAT = 1
Probability = Annotated[float, pydantic.Field(gt=0, lt=1 + 1e-9)]  # of an image left alone, 1
NONE_OF_THESE = "none of these"  # the label of an image that belongs to no class: any answer of the model is wrong


@dataclass
class DrawnImage:
    """One image of an audit, with the model's answer at the time; names are written as by `name_as_text`."""

    name: str  # as in a LabelBook
    path: str  # in the table that people fill in
    batch: PositiveInt  # 1 for the first call that drew images, 2 for the next
    q: Probability  # probability with which it was drawn among the images left
    smallest_q: Probability  # that of the most improbable image left
    predicted: str
    doubt: Share  # the model's own probability that its answer is wrong
    entropy: NonNegativeFloat  # nats, without temperature
    label: str | None = None  # the true class, once people have given it
    released: bool = False  # whether it may be trained on


@dataclass
class Look:
    """A time at which the error was computed from the first `n` labels."""

    n: PositiveInt
    alpha: Probability  # probability, spent on this look, that its interval misses


@dataclass
class Audit:
    """The images drawn from one pool for one model by one rule."""

    id: str
    model: str  # checksum of the weights
    weighted: bool  # drawn by the model's doubt; else each of the images left is equally probable
    seed: int
    folder: str | None  # the pool: a folder, or None for the run's own unlabelled images
    images: PositiveInt  # N, the size of the pool
    names: str  # digest of the names in the pool
    labelled_before: list[str]  # images in the label book when the audit began, which are not in the pool
    mean_doubt: Share  # over the pool
    draws: list[DrawnImage] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)

    @property
    def labelled(self) -> list[DrawnImage]:
        """The draws whose labels count; they come before all others.

        Images that were drawn together count once all of them have a label: who answers them one by one begins with
        those that are easy.
        """
        unfinished = min((draw.batch for draw in self.draws if draw.label is None), default=None)
        return [draw for draw in self.draws if unfinished is None or draw.batch < unfinished]

    def is_consistent(self) -> bool:
        """Whether no image was drawn twice, and no look had more labels than there are."""
        names = {draw.name for draw in self.draws}
        most = max((look.n for look in self.looks), default=0)
        return len(names) == len(self.draws) <= self.images and most <= len(self.labelled)


@dataclass
class AuditRecord:
    """The content of RUN/audit.json."""

    format: int = FORMAT
    audits: list[Audit] = field(default_factory=list)

    @staticmethod
    def load(run: str | Path) -> AuditRecord:
        """The record of a run; an empty one if nothing was drawn yet."""
        path = RunFolder(run).audit
        if not path.exists():
            return AuditRecord()
        try:
            record = _ADAPTER.validate_json(read_regular(path))
        except (OSError, pydantic.ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"{error.error_count()} wrong values"
            raise NPMatchError(f"{path}: not what npmatch audit wrote ({reason}); restore or remove it") from error
        if record.format != FORMAT:
            raise NPMatchError(f"{path}: written by another version of npmatch; use that one")
        if not all(audit.is_consistent() for audit in record.audits):
            raise NPMatchError(f"{path}: its draws and looks do not fit together; restore or remove it")
        return record

    def save(self, run: str | Path) -> None:
        """Writes the record; only inside `exclusive`."""
        path = RunFolder(run).audit
        try:
            write_atomically(path, (json.dumps(asdict(self), indent=1) + "\n").encode())
        except OSError as error:
            raise NPMatchError(f"{path}: cannot be written ({error.strerror}); allow writing, or free space") from error


_ADAPTER = pydantic.TypeAdapter(AuditRecord)


@contextmanager
def exclusive(run: str | Path) -> Iterator[AuditRecord]:
    """The record, which nobody else may change inside the `with`."""
    path = RunFolder(run).audit
    try:
        with one_writer(path.with_name(f".{path.name}.lock")):
            remove_leftovers(path)
            yield AuditRecord.load(run)
    except OSError as error:
        raise NPMatchError(f"{path}: cannot be written ({error.strerror}); allow writing, or free space") from error


def kept_for_audits(run: str | Path) -> set[str]:
    """The names of images that were drawn for an audit of a run, and that nobody has released for training.

    Those of the runs that it started from are among them, as far as these still exist.
    """
    names: set[str] = set()
    folder, visited = RunFolder(run), set[Path]()
    while folder.path.resolve() not in visited:
        visited.add(folder.path.resolve())
        for audit in AuditRecord.load(folder.path).audits:
            names |= {name_from_text(draw.name) for draw in audit.draws if not draw.released}
        folder = folder.started_from() or folder
    return names


def kept_error(where: str, path: str, run: str | Path) -> NPMatchError:
    """The error of a label for an image that is kept for an audit; `where` names the row."""
    return NPMatchError(
        f"{where}: {path} was drawn for an audit and is kept out of training; remove the row, or release the images: "
        f"npmatch audit {run} --release FILE"
    )
