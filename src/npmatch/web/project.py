"""The state behind the page of a folder of pictures: what is wrong with them, their labels, its rounds and its models.

A background thread checks the pictures, computes their features and chooses the first ones to label. Then it follows
the labels and the rounds: the quick look is fitted anew, or a finished round's model guesses and chooses the next ones.
Pictures that are added to the folder are taken in when somebody asks for it.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from threading import Event, Lock
from typing import Any

import torch

from npmatch.data import FileImages, ImageSet
from npmatch.data.check import check_data
from npmatch.data.check.findings import DataReport
from npmatch.data.copies import copies_in_report, picture_of_each
from npmatch.data.sources.folders import list_pictures
from npmatch.errors import NPMatchError
from npmatch.labelling.first import SIDE, choose_typical, first_of_each
from npmatch.labelling.suggest import choose_diverse
from npmatch.report.formatting import printable
from npmatch.report.gallery import LARGEST_SIDE
from npmatch.web.answer import encode_image
from npmatch.web.audit import Audits
from npmatch.web.background import Background
from npmatch.web.decoding import shared_decoder
from npmatch.web.desk import Desk
from npmatch.web.figures import FigureCache
from npmatch.web.findings import describe_findings
from npmatch.web.forecasting import Forecasts
from npmatch.web.models import Features, PageModel, QuickLook, RoundModel
from npmatch.web.picture_features import PictureFeatures
from npmatch.web.rounds import Rounds
from npmatch.web.training import MINUTES, Training

OFFERED = 40  # pictures to label that are chosen at a time
POLL_SECONDS = 0.5  # between two looks at labels and rounds


def runs_beside(folder: Path) -> Path:
    """Where the rounds of a folder lie by default: photos-runs beside photos."""
    return Path(os.path.normpath(folder / ".." / f"{os.path.basename(os.path.abspath(folder))}-runs"))


class Project(Background):
    """One folder of pictures. `start` begins the work in the background; every method works at any time."""

    def __init__(self, folder: Path, out: Path | None = None, device: str | None = None) -> None:
        """Lists the pictures; `out` is the folder of the rounds."""
        super().__init__("project")
        self.folder, self.device = folder, device
        self.listing = list_pictures(folder)
        if not self.listing.files:
            raise NPMatchError(f"{folder}: neither a run nor a folder of images; name one that holds JPEG or PNG files")
        self.rounds = Rounds(folder, out or runs_beside(folder))
        self.training = Training(folder, self.rounds, device)
        self.desk = Desk(self.listing, self.rounds.out / "classes.json")
        self.forecasts = Forecasts(self.rounds, device)
        self.audits = Audits(self.rounds, self.desk, self.training)
        self.report: DataReport | None = None
        self.progress: dict[str, Any] = {"stage": "checking", "done": 0, "total": len(self.desk.names)}
        self.model: PageModel | None = None
        self.quick_look: QuickLook | None = None
        self._describer = PictureFeatures(self.rounds.out / ".features", device)
        self._features: Features | None = None
        self.num_checks = 0  # of the pictures, so far
        self._wants_check = Event()
        self._has_new_pictures = False  # since the last guesses
        self._chosen: RoundModel | None = None  # of a round that is not the newest
        self._choosing = Lock()
        self._offered: list[int] = []
        self._looked_at: dict[int, str] = {}  # the labels that the quick look was fitted to
        self._refused: dict[str, str] = {}  # rounds whose model cannot be loaded, and why
        self._figures: dict[str, FigureCache] = {}

    def _work(self) -> None:
        """Prepares the pictures, then follows labels and rounds."""
        self._prepare()
        while not self._stop.wait(POLL_SECONDS):
            if self._wants_check.is_set():
                self._wants_check.clear()
                self._take_in()
            self._follow_on()

    def _prepare(self) -> None:
        """Checks the pictures, computes their features and offers the first ones to label."""
        shared_decoder().start()
        self.report = report = check_data(self.listing, workers=0, advance=self._advance)
        names, broken = self.desk.names, {one.path for one in report.quarantine}
        present = {file.name for file in self.listing.files}
        pool = ImageSet(FileImages(self.desk.paths, SIDE), torch.empty(len(names)), names)
        pictures = [int(number) for number in picture_of_each(len(names), copies_in_report(report, pool))]
        used = first_of_each(pictures, [name in present and name not in broken for name in names])
        self.desk.leave_out(set(range(len(names))) - set(used))
        self.num_checks += 1
        if not used:
            raise NPMatchError(f"{self.folder}: none of its {len(names)} images can be read")
        self._features = self._describer.describe(
            self.listing, self.desk.paths, used, self._begin_features, self._advance
        )
        self._offer()
        self.progress = {"stage": "ready", "done": len(used), "total": len(used)}

    def look_again(self) -> dict[str, int]:
        """Asks for a check of the folder if pictures were added or removed; returns how many."""
        now, before = ({file.name for file in one.files} for one in (list_pictures(self.folder), self.listing))
        if now != before:
            self._wants_check.set()
        return {"new": len(now - before), "gone": len(before - now)}

    def _take_in(self) -> None:
        """Lists the pictures again, checks them, and lets the models guess those that are new."""
        listing = list_pictures(self.folder)
        if not listing.files:  # a disk that is not mounted, perhaps: what is known stays
            return
        self.listing = listing
        self.desk.extend(listing)
        self.progress = {"stage": "checking", "done": 0, "total": len(listing.files)}
        self._prepare()
        self._looked_at, self._has_new_pictures = {}, True

    def _begin_features(self, number: int) -> None:
        self.progress = {"stage": "features", "done": 0, "total": number}

    def _advance(self, number: int) -> None:
        self.progress = {**self.progress, "done": self.progress["done"] + number}
        if self._stop.is_set():
            raise NPMatchError("stopped")

    def _follow_on(self) -> None:
        """Follows labels and rounds; a table or a round that cannot be read may be mended while the page is open."""
        try:
            self._follow()
            self.problem = next(iter(self._refused.values()), None)
        except NPMatchError as error:
            self.problem = str(error)

    def _follow(self) -> None:
        """Takes notice of new labels and of a new round."""
        newest = next((name for name in reversed(self.rounds.finished()) if name not in self._refused), None)
        labels = self.desk.labels()
        if labels != self._looked_at:
            self._look(labels)
        if newest is not None and (self.model is None or self.model.name != newest or self._has_new_pictures):
            self._take_round(newest)
        elif self._is_exhausted():
            self._offer()

    def _look(self, labels: dict[int, str]) -> None:
        """Fits the quick look to the labels; its guesses are shown until there is a round."""
        self._looked_at = labels
        assert self._features is not None
        place = self._features.place_of()
        if len({label for picture, label in labels.items() if picture in place}) < 2:
            self.quick_look = None
            return
        look = QuickLook(self._features, labels)
        if not isinstance(self.model, RoundModel):
            self.desk.guesses = look.guesses(len(self.desk.names))
            self.model = look
        self.quick_look = look

    def _take_round(self, name: str) -> None:
        """Lets the model of a finished round guess, and offers what it is unsure of."""
        try:
            model = RoundModel(name, self.rounds.out / name, self.device)
        except NPMatchError as error:
            self._refused[name] = str(error)
            return
        assert self._features is not None
        guesses = model.guesses(self.desk.paths, self._features.rows.tolist(), self._stop.is_set)
        if guesses is not None:
            self.desk.guesses, self.model, self._has_new_pictures = guesses, model, False
            self._offer()

    def _is_exhausted(self) -> bool:
        """Whether all pictures that were chosen are answered, and others are left."""
        todo = self.desk.rows_in("todo")
        return bool(todo.any()) and not todo[self._offered].any()

    def _offer(self) -> None:
        """Chooses the next pictures: typical ones before there is a round, then doubtful ones that differ."""
        features = self._features
        assert features is not None
        todo = self.desk.rows_in("todo")[features.rows]
        rows, known = features.rows[todo], features.of(self.desk.labels())
        values = features.values[torch.from_numpy(todo)]
        guesses = self.desk.guesses
        if isinstance(self.model, RoundModel) and guesses is not None and len(rows):
            doubt = torch.from_numpy(guesses.entropy[rows])
            picks = [pick.position for pick in choose_diverse(doubt, lambda at: values[at], OFFERED, known)]
        else:
            picks = [row for row, _ in choose_typical(values, OFFERED, known)] if len(rows) else []
        self._offered = [int(rows[pick]) for pick in picks] or rows[:OFFERED].tolist()
        self.desk.offer(self._offered)

    def image(self, position: int) -> tuple[bytes, str]:
        """A picture as PNG or JPEG, and its media type."""
        if not 0 <= position < len(self.desk.paths):
            raise NPMatchError(f"picture {position}: there is none of this number")
        return encode_image(FileImages([self.desk.paths[position]], LARGEST_SIDE), 0)

    def model_of(self, name: str | None) -> PageModel | None:
        """The model of a round, the quick look if the name is empty, or the newest one for None."""
        if name is None or (self.model is not None and name == self.model.name):
            return self.model
        if not name:
            return self.quick_look
        if not (run := self.rounds.folder(name)).is_finished():
            raise NPMatchError(f"{name}: has no model yet")
        with self._choosing:
            if self._chosen is None or self._chosen.name != name:
                self._chosen = RoundModel(name, run.path, self.device)
            return self._chosen

    def answer(self, content: bytes, name: str | None = None) -> dict[str, Any]:
        """A model's prediction for one image file, by default the newest model's."""
        model = self.model_of(name)
        if model is None:
            raise NPMatchError(self.problem or "there is no model yet: label pictures of two classes first")
        found = model.answer(content)
        for row in found["classes"]:
            row["name"] = printable(model.class_names[row["label"]])
        return {**found, "model": model.name}

    def findings(self) -> list[dict[str, Any]]:
        """What is wrong with the pictures, each kind with some of them."""
        return [] if self.report is None else describe_findings(self.report, self.desk.names)

    def about(self) -> dict[str, Any]:
        """The facts of the folder that do not change."""
        return {
            "folder": printable(self.folder),
            "name": printable(os.path.basename(os.path.abspath(self.folder))),
            "table": printable(self.desk.book.path),
            "minutes": list(MINUTES),
            "check": f"npmatch check-data {shlex.quote(str(self.folder))}",
        }

    def _suggest_command(self) -> str:
        """The command that chooses the next pictures to label."""
        words = ["npmatch", "suggest", "--data", str(self.folder), "-n", str(OFFERED), "-o", str(self.desk.book.path)]
        if isinstance(self.model, RoundModel):
            words = ["npmatch", "suggest", str(self.rounds.out / self.model.name), "-n", str(OFFERED)]
        return shlex.join(words)

    def status(self) -> dict[str, Any]:
        """Everything that changes; the page requests it every few seconds."""
        problem, counts, classes = self.problem, None, list[str]()
        try:
            counts, classes = self.desk.counts(), self.desk.classes()
        except NPMatchError as error:  # labels.csv was edited by hand and cannot be read
            problem = str(error)
        guesses, current = self.desk.guesses, self.current_round()
        return {
            "problem": problem and printable(problem),
            "progress": self.progress,
            "checks": self.num_checks,
            "sizes": None if self.report is None else self.report.sizes,
            "classes": classes,
            "counts": counts,
            "guesses": None if guesses is None else {"source": guesses.source, "classes": list(guesses.class_names)},
            "quick_look": 0 if self.quick_look is None else self.quick_look.num_labels,
            "training": self.training.describe(),
            "forecast": self.forecasts.describe(),
            "rounds": [self.rounds.describe(name) for name in self.rounds.names()],
            "command": shlex.join(self.training.command(MINUTES[0])),
            "suggest": self._suggest_command(),
            "figures": None if current is None else f"{current}-{self.figures(current).version()}",
        }

    def current_round(self) -> str | None:
        """The round whose curves are shown: the one being trained, or the last."""
        job, names = self.training.running(), self.rounds.names()
        return job.run if job is not None and job.run in names else next(reversed(names), None)

    def figures(self, name: str) -> FigureCache:
        """The figures of a round."""
        return self._figures.setdefault(name, FigureCache(self.rounds.folder(name).path))
