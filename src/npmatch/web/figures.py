"""A run's figures as pictures: how training goes, and what the final model is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from npmatch.metrics import risk_coverage
from npmatch.report import RunRecord, charts, curves
from npmatch.report.style import PALETTE
from npmatch.runs.evaluate import read_record
from npmatch.runs.folder import RunFolder

# A figure opened on its own is a document of this origin: it may have its colours, and nothing else.
FIGURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
OWN_STYLE = 'svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif !important; }'


@dataclass(frozen=True)
class Figure:
    """A figure, and what is said below it."""

    title: str
    about: str
    draw: Callable[[RunRecord], str]  # an <svg> element, or nothing where there is nothing to draw
    needs_model: bool = False


def _classes(record: RunRecord) -> str:
    return charts.class_scatter(record.classes())


def _confidence(record: RunRecord) -> str:
    return charts.reliability_diagram(record.confidence(), "confidence", "accuracy", "confidence")


def _uncertainty(record: RunRecord) -> str:
    return charts.reliability_diagram(record.uncertainty(), "uncertainty", "error", "uncertainty")


def _risk(record: RunRecord) -> str:
    return charts.risk_coverage_curve(risk_coverage(record.prediction, record.y))


FIGURES = {
    "classes": Figure("Class by class", "Uncertain classes should be the inaccurate ones.", _classes, True),
    "confidence": Figure("Is the confidence right?", "Bars on the dashed line: it is.", _confidence, True),
    "uncertainty": Figure("Is the uncertainty right?", "As a share of its maximum, log K.", _uncertainty, True),
    "risk": Figure("When it may abstain", "The error when doubtful images go to a person.", _risk, True),
    "error": Figure("Test error", "Of the averaged model, along the way.", curves.error_curve),
    "losses": Figure("Losses", "Of the training batches.", curves.loss_curves),
    "trust": Figure("Pseudo-labels", "How many were trusted, and how many of those were right.", curves.trust_curves),
    "latent": Figure("Latent variable", "A divergence of 0 says that it carries nothing.", curves.latent_curves),
}


class FigureBook:
    """The figures of a run that may still be going on: drawn when asked for, again when its log has grown."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet."""
        self.folder = folder
        self._drawn: dict[str, str] = {}
        self._version = ""
        self._lock = Lock()

    def version(self) -> str:
        """Changes when the log or the test predictions do."""
        run = RunFolder(self.folder)
        stamps = [_stamp(path) for path in (run.log, run.test_predictions)]
        return "-".join(f"{stamp:x}" for stamp in stamps)

    def drawings(self) -> dict[str, str]:
        """Name → SVG file, of the figures there is something to draw for."""
        with self._lock:
            version = self.version()
            if version != self._version:
                self._drawn = draw_figures(self.folder)
                self._version = version
            return self._drawn


def draw_figures(folder: Path) -> dict[str, str]:
    """All figures of a run as it is now."""
    record = read_record(RunFolder(folder))
    has_model = len(record.y) > 0
    shown = {name: str(figure.draw(record)) for name, figure in FIGURES.items() if has_model or not figure.needs_model}
    return {name: stand_alone(drawing) for name, drawing in shown.items() if drawing}


def stand_alone(drawing: str) -> str:
    """An <svg> element of a page as a file of its own, with the page's colours for light and dark."""
    opening, rest = drawing.split(">", 1)
    opening = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{opening}><style>{PALETTE}{OWN_STYLE}</style>{rest}"


def _stamp(path: Path) -> int:
    try:
        found = path.stat()
    except OSError:
        return 0
    return hash((found.st_mtime_ns, found.st_size)) & 0xFFFFFFFF
