"""A run's figures as SVG files: training curves, and the final model's accuracy and calibration."""

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

# A figure opened on its own is a document of this origin: only its own inline styles are allowed.
FIGURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
OWN_STYLE = 'svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif !important; }'


@dataclass(frozen=True)
class Figure:
    """A figure with its title and caption."""

    title: str
    about: str
    draw: Callable[[RunRecord], str]  # returns an <svg> element, or an empty string where there is no data
    needs_predictions: bool = False  # of the final model on the test images


def _classes(record: RunRecord) -> str:
    return charts.class_scatter(record.classes())


def _confidence(record: RunRecord) -> str:
    return charts.reliability_diagram(record.confidence(), "confidence", "accuracy", "confidence")


def _uncertainty(record: RunRecord) -> str:
    return charts.reliability_diagram(record.uncertainty(), "uncertainty", "error", "uncertainty")


def _risk(record: RunRecord) -> str:
    return charts.risk_coverage_curve(risk_coverage(record.prediction, record.y))


FIGURES = {
    "classes": Figure("Classes", "The uncertain classes should be the inaccurate ones.", _classes, True),
    "confidence": Figure("Calibration of the confidence", "Bars on the dashed line are calibrated.", _confidence, True),
    "uncertainty": Figure("Calibration of the uncertainty", "Entropy as a share of log K.", _uncertainty, True),
    "risk": Figure("Abstention", "Error among the images answered.", _risk, True),
    "error": Figure("Test error", "Error of the averaged model during training.", curves.error_curve),
    "losses": Figure("Losses", "Losses of the training batches.", curves.loss_curves),
    "trust": Figure("Pseudo-labels", "Share that was trusted, and share of those that was right.", curves.trust_curves),
    "latent": Figure("Latent variable", "At a divergence of 0 it carries no information.", curves.latent_curves),
}


class FigureCache:
    """The figures of a run, drawn on request and again once its log or its test predictions have changed."""

    def __init__(self, folder: Path) -> None:
        """Reads nothing yet."""
        self.folder = folder
        self._drawn: dict[str, str] = {}
        self._version = ""
        self._lock = Lock()

    def version(self) -> str:
        """A string that changes when the log or the test predictions change."""
        run = RunFolder(self.folder)
        stamps = [_stamp(path) for path in (run.log, run.test_predictions)]
        return "-".join(f"{stamp:x}" for stamp in stamps)

    def drawings(self) -> dict[str, str]:
        """Name → SVG file, for every figure that has data."""
        with self._lock:
            version = self.version()
            if version != self._version:
                self._drawn = draw_figures(self.folder)
                self._version = version
            return self._drawn


def draw_figures(folder: Path) -> dict[str, str]:
    """Name → SVG file, for every figure that the run in `folder` has data for."""
    record = read_record(RunFolder(folder))
    has_predictions = len(record.y) > 0
    figures = {name: figure for name, figure in FIGURES.items() if has_predictions or not figure.needs_predictions}
    drawings = {name: str(figure.draw(record)) for name, figure in figures.items()}  # plain text, not Markup
    return {name: as_svg_file(drawing) for name, drawing in drawings.items() if drawing}


def as_svg_file(drawing: str) -> str:
    """Turns an inline <svg> element into a file of its own, with the page's colours for light and dark."""
    opening, rest = drawing.split(">", 1)
    opening = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{opening}><style>{PALETTE}{OWN_STYLE}</style>{rest}"


def _stamp(path: Path) -> int:
    try:
        status = path.stat()
    except OSError:
        return 0
    return hash((status.st_mtime_ns, status.st_size)) & 0xFFFFFFFF
