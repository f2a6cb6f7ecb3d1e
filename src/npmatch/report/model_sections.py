"""Sections on what the final model says of the test set: classes, calibration, abstaining, single images."""

from __future__ import annotations

import math

from npmatch.metrics import (
    ClassRow,
    RiskCoverage,
    Scores,
    classwise,
    confusion,
    reliability_bins,
    risk_coverage,
    uncertainty_bins,
)
from npmatch.report import charts
from npmatch.report.elements import beside, details, figure, panels, section, table, text, tile
from npmatch.report.formatting import count, decimal, percent
from npmatch.report.gallery import is_crisp, png_data_uri
from npmatch.report.record import RunRecord

LARGEST_CONFUSION = 30  # classes
DENSE_CONFUSION = 12  # classes, above which the cells shrink


def classes(record: RunRecord) -> str:
    """Are the uncertain classes the inaccurate ones?"""
    rows = classwise(record.prediction, record.y, record.class_names)
    correlation = rank_correlation(rows)
    seen = [row for row in rows if row.n]
    worst, doubtful = min(seen, key=_accuracy), max(seen, key=_uncertainty)
    tiles = [
        tile(decimal(correlation, 2).replace("-", "−"), "Rank correlation", "Spearman’s ρ; −1 is ideal"),
        tile(percent(100 * worst.accuracy), "Least accurate", text(worst.name)),
        tile(f"{doubtful.uncertainty:.2f} nats", "Most uncertain", text(doubtful.name)),
    ]
    cells = [
        [row.name, count(row.n), percent(100 * row.accuracy), decimal(row.uncertainty)]
        for row in [*sorted(seen, key=_accuracy), *(row for row in rows if not row.n)]
    ]
    return section(
        "classes",
        "Class by class",
        "Where uncertainty is worth something, the uncertain classes are the inaccurate ones.",
        beside(charts.class_scatter(rows), *tiles),
        details("All classes as a table", table(["Class", "Images", "Accuracy", "Uncertainty, nats"], cells)),
    )


def _accuracy(row: ClassRow) -> float:
    return row.accuracy


def _uncertainty(row: ClassRow) -> float:
    return row.uncertainty


def rank_correlation(rows: list[ClassRow]) -> float | None:
    """Spearman's ρ of class-wise uncertainty and accuracy; None where fewer than three classes differ."""
    from scipy.stats import spearmanr

    seen = [row for row in rows if row.n]
    accuracy, uncertainty = [row.accuracy for row in seen], [row.uncertainty for row in seen]
    if len(seen) < 3 or len(set(accuracy)) < 2 or len(set(uncertainty)) < 2:
        return None
    return float(spearmanr(uncertainty, accuracy).statistic)


def calibration(record: RunRecord, scores: Scores) -> str:
    """The two reliability diagrams."""
    prediction, y = record.prediction, record.y
    by_confidence = reliability_bins(prediction.probs, y)
    by_uncertainty = uncertainty_bins(prediction.entropy, prediction.label != y, prediction.probs.shape[1])
    return section(
        "calibration",
        "Calibration",
        "Bars on the dashed diagonal mean that the model’s own estimate can be taken at its word.",
        panels(
            figure(
                charts.reliability_diagram(by_confidence, "confidence", "accuracy", "confidence"),
                f"Confidence: ECE {percent(scores.ece)}.",
            ),
            figure(
                charts.reliability_diagram(by_uncertainty, "uncertainty", "error", "uncertainty"),
                f"Uncertainty, as a share of its maximum log K: UCE {percent(scores.uce)}.",
            ),
        ),
    )


def selective(record: RunRecord) -> str:
    """What abstaining buys."""
    curve = risk_coverage(record.prediction, record.y)
    tiles = [
        tile(
            percent(100 * _risk_at(curve, share)),
            f"Error on the surest {share} %",
            "the rest goes to a person",
        )
        for share in (90, 80)
    ]
    tiles.append(tile(percent(100 * curve.area, 2), "AURC", "error averaged over all shares answered"))
    lead = "The error when the model may leave its most uncertain images to a person."
    return section("selective", "When it may abstain", lead, beside(charts.risk_coverage_curve(curve), *tiles))


def _risk_at(curve: RiskCoverage, share: int) -> float:
    """Error rate of the surest `share` per cent of the images."""
    answered = math.ceil(share / 100 * len(curve.risk))
    return float(curve.risk[answered - 1])


def confusions(record: RunRecord) -> str:
    """What is taken for what, for a number of classes that fits a page."""
    names = [text(name) for name in record.class_names]
    if len(names) > LARGEST_CONFUSION:
        return ""
    head = "".join(f'<th title="{name}"><span>{name}</span></th>' for name in names)
    lines = []
    for true, row in enumerate(confusion(record.prediction, record.y).tolist()):
        depth = [math.sqrt(n / max(sum(row), 1)) for n in row]  # the root, so that rare errors show
        cells = []
        for predicted, n in enumerate(row):
            kind = "right" if true == predicted else "wrong"
            deep = " deep" if depth[predicted] > 0.6 else ""
            story = f"{names[true]} taken for {names[predicted]}: {n}"
            shade = f"--depth:{depth[predicted]:.3f}"
            cells.append(f'<td class="{kind}{deep}" style="{shade}" title="{story}">{n or ""}</td>')
        lines.append(f'<tr><th title="{names[true]}"><span>{names[true]}</span></th>{"".join(cells)}</tr>')
    dense = " dense" if len(names) > DENSE_CONFUSION else ""
    grid = (
        f'<div class="scroll"><table class="confusion{dense}"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
    lead = "Rows are true classes, columns predictions; the deeper a cell, the larger its share of the row."
    return section("confusion", "What is taken for what", lead, grid)


def gallery(record: RunRecord) -> str:
    """The surest and the least sure of the images given."""
    shown = sorted(record.gallery, key=lambda i: float(record.prediction.entropy[i]))
    if not shown:
        return ""
    middle = (len(shown) + 1) // 2
    groups = {"Most certain": shown[:middle], "Least certain": shown[middle:][::-1]}
    body = [
        f'<h3>{name}</h3><div class="shots">{"".join(_shot(record, i) for i in indices)}</div>'
        for name, indices in groups.items()
        if indices
    ]
    return section("gallery", "Sure and unsure", "Test images at both ends of the model’s uncertainty.", *body)


def _shot(record: RunRecord, index: int) -> str:
    """One test image with what the model says of it."""
    image, prediction = record.gallery[index], record.prediction
    true, label = int(record.y[index]), int(prediction.label[index])
    mark = '<span class="good">✓</span>' if true == label else '<span class="bad">✗</span>'
    crisp = ' class="crisp"' if is_crisp(image) else ""
    names = text(record.class_names[label]), text(record.class_names[true])
    return (
        f'<figure class="shot"><img{crisp} src="{png_data_uri(image)}" alt="test image {index}">'
        f"<figcaption><strong>{names[0]} {mark}</strong>truly {names[1]}<br>"
        f"confidence {percent(100 * float(prediction.confidence[index]))}<br>"
        f"uncertainty {float(prediction.entropy[index]):.2f}</figcaption></figure>"
    )
