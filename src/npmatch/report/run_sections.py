"""Sections of the page of a single run.

A section is a template with its data. Its text is in the template, where names given by users are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from npmatch.decide import CONFIDENCE, TARGETS, Abstention, fewest_labels
from npmatch.metrics import ClassRow, RiskCoverage, Scores, confusion, risk_coverage
from npmatch.report import charts, curves
from npmatch.report.formatting import MISSING, count, decimal, duration, percent
from npmatch.report.gallery import is_crisp, png_data_uri
from npmatch.report.record import RunRecord
from npmatch.report.tables import Line, is_uneven
from npmatch.training.log import number

LARGEST_CONFUSION = 30  # classes
DENSE_CONFUSION = 12  # classes, above which the cells are smaller


class Section(NamedTuple):
    """A template and its data."""

    template: str
    data: Mapping[str, object]


class Tile(NamedTuple):
    """One headline number with its meaning."""

    value: str
    name: str
    meaning: str


def facts(run: RunRecord) -> Iterator[str]:
    """Sizes and training time, for the line below the title."""
    yield f"{count(len(run.class_names))} classes"
    yield f"{count(len(run.y))} test images" if len(run.y) else "no test images"
    if steps := max((number(line.get("step")) or 0 for line in run.records), default=0):
        yield f"{count(steps)} steps"
    if (seconds := run.last("train", "seconds")) is not None:
        yield f"trained in {duration(seconds)}"
    if (rate := run.last("train", "images_per_second")) is not None:
        yield f"{count(rate)} images/s"


def headline(run: RunRecord) -> Iterator[Tile]:
    """Tiles for error, calibration and number of labels."""
    found, num_classes = run.scores if len(run.y) else None, len(run.class_names)
    if found is not None:
        wrong = round(found.error * found.n / 100)
        top5 = f"; top-5 {percent(found.top5_error)}" if num_classes > 5 else ""
        yield Tile(percent(found.error), "Error", f"{count(wrong)} of {count(found.n)} test images{top5}")
        if is_uneven({**found.asdict(), "class_ratio": run.last("final", "class_ratio")}):
            words = f"mean over classes; geometric mean of their accuracies {percent(found.geometric_accuracy)}"
            yield Tile(percent(found.balanced_error), "Balanced error", words)
    elif run.estimated is not None and not run.audited:
        yield Tile(f"about {percent(run.estimated.error)}", "Error", run.estimated.words)
    for audit in run.audited:
        yield Tile(percent(min(max(audit.error, 0), 100)), "Audited error", audit.words)
    if (probe := run.probe()) is not None:
        how = ", estimated out of fold from the labels" if probe.is_estimated else ""
        yield Tile(probe.words, "Linear probe", f"error of logistic regression on the pretrained features{how}")
    if found is not None:
        yield Tile(percent(found.ece), "ECE", "gap between confidence and accuracy")
        yield Tile(percent(found.uce), "UCE", "gap between uncertainty and error")
        yield Tile(decimal(found.nll), "NLL", "nats per image")
        yield Tile(decimal(found.brier), "Brier", "squared error of the probabilities, 0 to 2")
    if (auroc := run.last("final", "outlier_auroc")) is not None:
        yield Tile(percent(auroc), "Outlier AUROC", "how well images of no known class are told from the others")
    if run.num_labeled is not None:
        yield Tile(count(run.num_labeled), "Labels", f"{run.num_labeled / num_classes:.3g} per class on average")


def training(run: RunRecord) -> Section | None:
    """Losses and test error against the step."""
    losses, error = curves.loss_curves(run), curves.error_curve(run)
    if not losses and not error:
        return None
    steps, errors = run.series("eval", "error")
    lowest, step = (percent(errors.min()), count(steps[errors.argmin()])) if len(errors) else ("", "")
    return Section("training.html", {"losses": losses, "error": error, "lowest": lowest, "lowest_step": step})


def pseudo_labels(run: RunRecord) -> Section | None:
    """Share of trusted pseudo-labels and their accuracy, against the step."""
    tiles = [
        Tile(percent(100 * value), name, meaning)
        for key, name, meaning in (
            ("trusted", "Trusted at the end", "share of unlabelled images that teach the model"),
            ("pseudo_accuracy", "Right at the end", "share of trusted pseudo-labels that are correct"),
        )
        if (value := run.last("train", key)) is not None
    ]
    drawing = curves.trust_curves(run)
    return Section("pseudo_labels.html", {"drawing": drawing, "numbers": tiles}) if drawing else None


def latent(run: RunRecord) -> Section | None:
    """Divergence and α of the neural process; at a divergence of 0 the latent carries no information."""
    tiles = [
        Tile(f"{value:.2g}", name, meaning)
        for key, name, meaning in (
            ("divergence", "Divergence at the end", "between the latents of target and context points, nats"),
            ("alpha", "α at the end", "skew of the divergence, from the two mean uncertainties"),
        )
        if (value := run.last("train", key)) is not None
    ]
    drawing = curves.latent_curves(run)
    return Section("latent.html", {"drawing": drawing, "numbers": tiles}) if drawing else None


def classes(run: RunRecord) -> Section:
    """Uncertainty against accuracy, class by class."""
    rows = run.classes()
    seen = sorted((row for row in rows if row.n), key=lambda row: row.accuracy)
    doubtful = max(seen, key=lambda row: row.uncertainty)
    tiles = [
        Tile(signed(rank_correlation(rows)), "Rank correlation", "Spearman’s ρ; −1 is ideal"),
        Tile(percent(100 * seen[0].accuracy), "Least accurate", seen[0].name),
        Tile(f"{doubtful.uncertainty:.2f} nats", "Most uncertain", doubtful.name),
    ]
    table = [
        Line(row.name, [count(row.n), percent(100 * row.accuracy), decimal(row.uncertainty)])
        for row in [*seen, *(row for row in rows if not row.n)]
    ]
    return Section("classes.html", {"drawing": charts.class_scatter(rows), "numbers": tiles, "lines": table})


def rank_correlation(rows: list[ClassRow]) -> float | None:
    """Spearman's ρ of class-wise uncertainty and accuracy; None where fewer than three classes differ."""
    from scipy.stats import spearmanr

    seen = [row for row in rows if row.n]
    accuracy, uncertainty = [row.accuracy for row in seen], [row.uncertainty for row in seen]
    if len(seen) < 3 or len(set(accuracy)) < 2 or len(set(uncertainty)) < 2:
        return None
    return float(spearmanr(uncertainty, accuracy).statistic)


def signed(value: float | None) -> str:
    """A number with two decimals and a minus sign instead of a hyphen."""
    return decimal(value, 2).replace("-", "−")


def _diagrams(run: RunRecord, suffix: str = "") -> dict[str, object]:
    """The two reliability diagrams; `suffix` makes their names unique on the page."""
    return {
        "confidence": charts.reliability_diagram(run.confidence(), "confidence", "accuracy", "confidence" + suffix),
        "uncertainty": charts.reliability_diagram(run.uncertainty(), "uncertainty", "error", "uncertainty" + suffix),
    }


def _calibration_errors(found: Scores, suffix: str = "") -> dict[str, object]:
    return {f"ece{suffix}": percent(found.ece), f"uce{suffix}": percent(found.uce)}


def calibration(run: RunRecord) -> Section:
    """Reliability diagrams of confidence and uncertainty."""
    return Section("calibration.html", {**_diagrams(run), **_calibration_errors(run.scores)})


def calibrated(run: RunRecord) -> Section | None:
    """Calibration on the test images before and after temperature scaling."""
    known, after = run.calibration, run.calibrated()
    if known is None or after is None:
        return None
    named = {"The model’s own": run.scores, f"At temperature {known.temperature:.2f}": after.scores}
    table = [
        Line(name, [percent(s.ece), percent(s.uce), decimal(s.nll), decimal(s.brier)]) for name, s in named.items()
    ]
    numbers = {**_calibration_errors(after.scores), **_calibration_errors(run.scores, "_before")}
    diagrams = _diagrams(after, "-calibrated")
    return Section("calibrated.html", {"held_out": count(known.n), "lines": table, **numbers, **diagrams})


def selective(run: RunRecord) -> Section:
    """The risk–coverage curve: error among the most certain predictions."""
    curve = risk_coverage(run.prediction, run.y)
    tiles = [
        Tile(percent(100 * _risk_at(curve, share)), f"Error on the surest {share} %", "the rest goes to a person")
        for share in (90, 80)
    ]
    tiles.append(Tile(percent(100 * curve.area, 2), "AURC", "error averaged over all shares answered"))
    return Section("selective.html", {"drawing": charts.risk_coverage_curve(curve), "numbers": tiles})


def _risk_at(curve: RiskCoverage, share: int) -> float:
    """Error rate of the most certain `share` per cent of the images."""
    answered = math.ceil(share / 100 * len(curve.risk))
    return float(curve.risk[answered - 1])


def abstention(run: RunRecord) -> Section | None:
    """Abstention thresholds from held-out labels, and their effect on the test images."""
    known = run.calibration
    if known is None or known.held_out is None or known.y is None:
        return None
    table, points, tiles = [], [], []
    for target in TARGETS:
        name, kept, error = f"at most {percent(100 * target, 0)}", None, None
        if (missing := fewest_labels(target) - known.n) > 0:
            cells = [f"{count(missing)} more labels needed", MISSING]
        else:
            chosen = known.abstention(target)
            share, error = chosen.measured(run.prediction.entropy, run.prediction.label != run.y)
            kept, cells = 100 * share, _threshold_cells(chosen)
        table.append(Line(name, [*cells, percent(kept), percent(error)]))
        tiles.append(Tile(percent(kept), f"Kept, error {name}", f"{percent(error)} of them were wrong"))
        if kept is not None and error is not None:
            points.append((kept, error, percent(100 * target, 0)))
    curve, held_out = risk_coverage(run.prediction, run.y), risk_coverage(known.held_out, known.y)
    drawing = charts.abstention_curve(curve, held_out, points)
    data = {"confidence": percent(100 * CONFIDENCE, 0), "lines": table, "drawing": drawing, "numbers": tiles[-2:]}
    return Section("abstention.html", data)


def _threshold_cells(chosen: Abstention) -> list[str]:
    if not chosen.kept:
        return ["keeps none", MISSING]
    threshold = "keeps all" if chosen.kept == chosen.n else decimal(chosen.threshold)
    return [threshold, f"{chosen.kept} of {chosen.n}, {chosen.errors} wrong"]


def confusions(run: RunRecord) -> Section | None:
    """The confusion matrix; None where there are too many classes for a page."""
    num_classes = len(run.class_names)
    if num_classes > LARGEST_CONFUSION:
        return None
    counts = confusion(run.prediction, run.y).tolist()
    rows = [
        (name, [_confusion_cell(n, sum(row), i == k, run.class_names[k]) for k, n in enumerate(row)])
        for i, (name, row) in enumerate(zip(run.class_names, counts, strict=True))
    ]
    return Section("confusion.html", {"names": run.class_names, "rows": rows, "dense": num_classes > DENSE_CONFUSION})


def _confusion_cell(n: int, n_row: int, right: bool, predicted: str) -> dict[str, object]:
    depth = math.sqrt(n / max(n_row, 1))  # the square root makes rare errors visible
    kind = ("right" if right else "wrong") + (" deep" if depth > 0.6 else "")
    return {"n": n, "kind": kind, "depth": f"{depth:.3f}", "predicted": predicted}


def gallery(run: RunRecord) -> Section | None:
    """The test images in the record's gallery, the most certain and the least certain ones."""
    shown = sorted(run.gallery, key=lambda i: float(run.prediction.entropy[i]))
    if not shown:
        return None
    middle = (len(shown) + 1) // 2
    halves = {"Most certain": shown[:middle], "Least certain": shown[middle:][::-1]}
    groups = [(title, [_shot(run, i) for i in half]) for title, half in halves.items() if half]
    return Section("gallery.html", {"groups": groups})


def _shot(run: RunRecord, index: int) -> dict[str, object]:
    """One test image with its prediction."""
    image, true, predicted = run.gallery[index], int(run.y[index]), int(run.prediction.label[index])
    return {
        "index": index,
        "source": png_data_uri(image),
        "crisp": is_crisp(image),
        "predicted": run.class_names[predicted],
        "true": run.class_names[true],
        "right": true == predicted,
        "confidence": percent(100 * float(run.prediction.confidence[index])),
        "uncertainty": decimal(float(run.prediction.entropy[index]), 2),
    }
