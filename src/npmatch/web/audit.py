"""Audits on the page of a folder: pictures drawn at random, answered without a guess in view, and the error they give.

Everything is stored in RUN/audit.json, which `npmatch audit` reads and writes too: an audit may be begun on the page
and finished in a terminal, and the other way round. Answers never enter the folder's table of labels unless somebody
releases the pictures.
"""

from __future__ import annotations

import csv
import io
import shlex
from dataclasses import asdict
from threading import Lock
from typing import Any

import numpy as np

from npmatch.data.sources.label_table import NONE_OF_THESE, Answer
from npmatch.errors import NPMatchError
from npmatch.files import name_as_text, name_from_text
from npmatch.labelling.audit import Auditor, list_in_data
from npmatch.labelling.audit_answers import AuditAnswers, answer_rows, has_new_answers, look_at_answers, release
from npmatch.labelling.folder_labels import take_folder_labels
from npmatch.report.formatting import printable
from npmatch.runs.audit_record import Audit, exclusive
from npmatch.runs.audit_result import CLASS_COLUMNS, levels_after, results_of
from npmatch.web.desk import Desk
from npmatch.web.labelling import Annotation, Annotations, View
from npmatch.web.pool import page_of
from npmatch.web.rounds import Rounds
from npmatch.web.training import Training

SIZES = (30, 60, 100)  # numbers of pictures that can be drawn at a time


class RoundAudit:
    """The audit of one round's model. Pictures are named by their number on the desk of the folder."""

    def __init__(self, name: str, rounds: Rounds, desk: Desk) -> None:
        """`name` is that of a finished round."""
        run = rounds.folder(name)
        if not run.is_finished():
            raise NPMatchError(f"{name}: has no model yet")
        self.name, self.run, self.desk = name, run.path, desk
        self.answers = AuditAnswers(run.path)
        self.annotations: Annotations[str] = Annotations(self.answers)
        self._lock = Lock()

    def draw(self, count: int, device: str | None) -> None:
        """Draws pictures, as `npmatch audit RUN -n COUNT` does."""
        if count not in SIZES:
            raise NPMatchError(f"count={count}: choose one of {', '.join(map(str, SIZES))}")
        auditor = Auditor(self.run, device=device)
        with exclusive(self.run) as record:
            audit, _ = auditor.draw(record, count, weighted=False, seed=0)
            record.save(self.run)
            problem = list_in_data(self.run, audit, self.desk.book.root)
        if problem is not None:
            raise NPMatchError(problem)
        self.desk.version += 1  # pages that offer these pictures load others

    def page(self, view: View, start: int, count: int) -> dict[str, Any]:
        """Pictures of the audit in the order of their draws, those that nobody has looked at."""
        audit, labels = self.answers.audit, self.answers.labels
        names = [] if audit is None else [name_from_text(draw.name) for draw in audit.draws[self._num_shown(audit) :]]
        shown = np.array([view == "all" or (name in labels) == (view == "labelled") for name in names], dtype=np.bool_)
        page = page_of(np.arange(len(names), dtype=np.int64), shown, start, count)
        images = [self._describe(names[row]) for row in page.rows]
        return {"images": images, "previous": page.previous, "next": page.next, "matching": int(shown.sum())}

    def mark(
        self, position: int, answer: Answer | None, skip: bool, user: str = "", seen: Answer | None = None
    ) -> dict[str, Any]:
        """Answers for a picture, or takes the answer back; as `Desk.mark`, but whoever skips only goes on."""
        name = self.desk.name_of(position)
        with self._lock, self.answers.exclusive():
            current, new = self.annotations.get(name).label, _as_label(answer)
            taken = skip or current in (new, _as_label(seen))
            if taken and not skip:
                self.annotations.set(name, Annotation(new, False), user)
            return {"changed": [self._describe(name)], "taken": taken, "counts": self.counts()}

    def undo(self, user: str = "") -> dict[str, Any]:
        """Undoes the user's last change; `changed` holds the picture, or nothing if there was none to undo."""
        with self._lock, self.answers.exclusive():
            name = self.annotations.undo(user)
            return {"changed": [] if name is None else [self._describe(name)], "counts": self.counts()}

    def look(self, interim: bool) -> None:
        """Computes the error from the answers, as `npmatch audit RUN` does."""
        audit = self.answers.audit
        if audit is None or not has_new_answers(audit):
            raise NPMatchError(f"{self.name}: answer all pictures that were drawn first")
        with self._lock:
            look_at_answers(self.run, interim=interim)
            self.annotations = Annotations(self.answers)  # what was shown can no longer be undone

    def release(self) -> int:
        """Lets the pictures be trained on and enters their answers into the folder's table; returns their number."""
        audit = self.answers.audit
        if audit is None or len(audit.draws) > self._num_shown(audit):
            raise NPMatchError(f"{self.name}: measure the error first; then its pictures can be released")
        rows = answer_rows(audit, self.run)
        with self.answers.exclusive() as record:
            audits = release(record, rows, self.run)
            record.save(self.run)
            problems = [list_in_data(self.run, one, self.desk.book.root) for one in audits]
        if problem := next(filter(None, problems), None):
            raise NPMatchError(problem)
        return len(take_folder_labels(self.desk.book.root, rows))

    def table(self) -> bytes:
        """The pictures with their answers as check.csv, for a terminal."""
        text, audit = io.StringIO(newline=""), self.answers.audit
        rows = [] if audit is None else answer_rows(audit, self.run)
        csv.writer(text).writerows([("path", "label"), *((name_as_text(row.path), row.label) for row in rows)])
        return text.getvalue().encode()

    def counts(self) -> dict[str, int]:
        """Numbers of pictures: drawn and not looked at yet, answered, to answer."""
        audit = self.answers.audit
        draws = [] if audit is None else audit.draws[self._num_shown(audit) :]
        answered = sum(draw.label is not None for draw in draws)
        return {"images": len(draws), "labelled": answered, "todo": len(draws) - answered, "version": len(draws)}

    def describe(self) -> dict[str, Any]:
        """How far the audit is, what it has measured, and the commands that do the same."""
        audit, run = self.answers.audit, shlex.quote(str(self.run))
        found = results_of(self.run)  # also those that only a terminal can begin
        own = next((one for one in found if audit is not None and one.id == audit.id), None)
        return {
            "round": self.name,
            "sizes": SIZES,
            "classes": self.answers.classes,
            "counts": self.counts(),
            "images": None if audit is None else audit.images,
            "drawn": 0 if audit is None else len(audit.draws),
            "can_look": audit is not None and has_new_answers(audit),
            "lines": [printable(line) for one in found for line in one.lines(self.run)],
            "columns": CLASS_COLUMNS,
            "rows": [] if own is None else [[printable(cell) for cell in row] for row in own.class_rows()],
            "measured": None if own is None else {**asdict(own.overall), "level": own.level},
            "next_levels": None if audit is None else levels_after(audit),
            "released": audit is not None and all(draw.released for draw in audit.draws),
            "commands": {
                "draw": f"npmatch audit {run} -n COUNT -o check.csv",
                "answer": f"npmatch audit {run} -o check.csv",
                "look": f"npmatch audit {run}",
                "release": f"npmatch audit {run} --release check.csv",
                "label": f"npmatch label {shlex.quote(str(self.desk.book.root))} check.csv",
            },
        }

    @staticmethod
    def _num_shown(audit: Audit) -> int:
        """Number of draws whose answers have been looked at."""
        return max((look.n for look in audit.looks), default=0)

    def _describe(self, name: str) -> dict[str, Any]:
        """One picture with its answer, and without what the model thinks of it."""
        label = self.annotations.get(name).label
        given = {"given": None if label == NONE_OF_THESE else label, "aside": label if label == NONE_OF_THESE else None}
        nothing = {"guess": None, "confidence": None, "entropy": None, "share": None, "sureness": ""}
        return {"image": self.desk.position_of(name), "name": printable(name), **nothing, **given, "skipped": False}


def _as_label(answer: Answer | None) -> str | None:
    return None if answer is None else answer.label or answer.set_aside


class Audits:
    """The audits of all rounds of a folder."""

    def __init__(self, rounds: Rounds, desk: Desk, training: Training) -> None:
        """Reads nothing yet; while `training` is at work, nothing is drawn."""
        self.rounds, self.desk, self.training = rounds, desk, training
        self._of_round: dict[str, tuple[object, RoundAudit]] = {}  # with the stamp of the model
        self._lock = Lock()

    def of(self, name: str) -> RoundAudit:
        """The audit of a round, which is another one if the round was trained anew."""
        weights = self.rounds.folder(name).model_weights
        with self._lock:
            stamp = weights.stat().st_mtime_ns if weights.is_file() else None
            before, found = self._of_round.get(name, (None, None))
            if found is None or before != stamp:
                found = RoundAudit(name, self.rounds, self.desk)
                self._of_round[name] = stamp, found
            return found

    def draw(self, name: str, count: int) -> dict[str, Any]:
        """Draws pictures of a round, unless something is being trained: both would wait for one another."""
        self.training.refuse_second()
        audit = self.of(name)
        audit.draw(count, self.training.device)
        return audit.describe()
