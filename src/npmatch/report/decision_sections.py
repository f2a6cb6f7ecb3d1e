"""Sections on what held-out labels add to a model: calibrated probabilities, and what may be left to it alone."""

from __future__ import annotations

from npmatch.decide import CONFIDENCE, TARGETS, Abstention, fewest_labels
from npmatch.metrics import Scores, reliability_bins, risk_coverage, scores, uncertainty_bins
from npmatch.report import charts
from npmatch.report.elements import beside, figure, panels, section, table, tile
from npmatch.report.formatting import MISSING, count, decimal, percent
from npmatch.report.record import RunRecord

NUMBERS = {"ece": "ECE", "uce": "UCE", "nll": "NLL", "brier": "Brier"}


def calibrated(record: RunRecord, before: Scores) -> str:
    """Before and after temperature scaling, on the test images."""
    known = record.calibration
    if known is None or known.temperature is None:
        return ""
    prediction, y = known.apply(record.prediction), record.y
    after = scores(prediction, y)
    rows = [["The model’s own", *_cells(before)], [f"At temperature {known.temperature:.2f}", *_cells(after)]]
    bins = reliability_bins(prediction.probs, y)
    doubt = uncertainty_bins(prediction.entropy, prediction.label != y, prediction.probs.shape[1])
    lead = (
        f"One number, the temperature, was fitted on {count(known.n)} held-out labels, which were neither trained on "
        "nor are among these test images. It changes how bold the probabilities are, never which class is likeliest."
    )
    diagrams = panels(
        figure(
            charts.reliability_diagram(bins, "confidence", "accuracy", "confidence-calibrated"),
            f"Calibrated confidence: ECE {percent(after.ece)}, before {percent(before.ece)}.",
        ),
        figure(
            charts.reliability_diagram(doubt, "uncertainty", "error", "uncertainty-calibrated"),
            f"Calibrated uncertainty: UCE {percent(after.uce)}, before {percent(before.uce)}.",
        ),
    )
    return section("calibrated", "Calibrated on held-out labels", lead, table(["", *NUMBERS.values()], rows), diagrams)


def _cells(found: Scores) -> list[str]:
    return [percent(found.ece), percent(found.uce), decimal(found.nll), decimal(found.brier)]


def abstention(record: RunRecord) -> str:
    """The thresholds that the held-out labels allow, and what they do to the test images."""
    known = record.calibration
    if known is None or known.held_out is None or known.y is None:
        return ""
    rows, points = [], []
    for target in TARGETS:
        if known.n < fewest_labels(target):
            missing = fewest_labels(target) - known.n
            rows.append([_at_most(target), f"{count(missing)} more labels needed", *[MISSING] * 3])
            continue
        chosen = known.abstention(target)
        kept, error = chosen.measured(record.prediction.entropy, record.prediction.label != record.y)
        rows.append([_at_most(target), *_threshold_cells(chosen), percent(100 * kept), percent(error)])
        if error is not None:
            points.append((100 * kept, error, percent(100 * target, 0)))
    held_out = risk_coverage(known.held_out, known.y)
    lead = (
        "What the held-out labels allow to be kept so that the error among kept predictions stays below a target, with "
        f"{percent(100 * CONFIDENCE, 0)} confidence; and what came of it on the test images."
    )
    headings = [
        "Error among kept",
        "Kept if uncertainty below, nats",
        "Held-out",
        "Test images kept",
        "Error among them",
    ]
    drawing = charts.abstention_curve(risk_coverage(record.prediction, record.y), held_out, points)
    tiles = [tile(kept, f"Kept, error {target}", f"{error} of them were wrong") for target, *_, kept, error in rows]
    body = beside(drawing, *tiles[-2:])
    return section("abstention", "What may be left to it alone", lead, table(headings, rows), body)


def _at_most(target: float) -> str:
    return f"at most {percent(100 * target, 0)}"


def _threshold_cells(chosen: Abstention) -> list[str]:
    if not chosen.kept:
        return ["keeps none", MISSING]
    threshold = "keeps all" if chosen.kept == chosen.n else decimal(chosen.threshold)
    return [threshold, f"{chosen.kept} of {chosen.n}, {chosen.errors} wrong"]
