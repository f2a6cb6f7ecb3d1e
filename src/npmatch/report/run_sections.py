"""Sections on the run: headline, comparison, training, settings; empty where there is nothing to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from npmatch.metrics import Scores
from npmatch.report import curves
from npmatch.report.elements import beside, details, figure, panels, section, table, text, tile
from npmatch.report.formatting import count, decimal, duration, percent
from npmatch.report.record import RunRecord
from npmatch.report.tables import HEADINGS, cell, lowest
from npmatch.training.log import number


def headline(record: RunRecord, scores: Scores) -> str:
    """The numbers a reader came for."""
    num_classes = len(record.class_names)
    wrong = round(scores.error * scores.n / 100)
    top5 = f"; top-5 {percent(scores.top5_error)}" if num_classes > 5 else ""
    tiles = [
        tile(percent(scores.error), "Error", f"{count(wrong)} of {count(scores.n)} test images{top5}"),
        tile(percent(scores.ece), "ECE", "gap between confidence and accuracy"),
        tile(percent(scores.uce), "UCE", "gap between uncertainty and error"),
        tile(decimal(scores.nll), "NLL", "nats per image"),
        tile(decimal(scores.brier), "Brier", "squared error of the probabilities, 0 to 2"),
    ]
    if record.num_labeled is not None:
        each = f"{record.num_labeled / num_classes:.3g} per class on average"
        tiles.append(tile(count(record.num_labeled), "Labels", each))
    return section("headline", "In numbers", "", f'<div class="tiles">{"".join(tiles)}</div>')


def comparison(record: RunRecord) -> str:
    """This run beside others."""
    if not record.comparison:
        return ""
    rows = [[row.get("name", ""), *(cell(row, key) for key in HEADINGS)] for row in record.comparison]
    best = lowest(record.comparison)
    return section(
        "comparison",
        "Compared with other methods",
        "The lowest number of each column is bold.",
        table(["Method", *HEADINGS.values()], rows, [best[key] for key in HEADINGS]),
    )


def training(record: RunRecord) -> str:
    """Losses and test error against the step."""
    steps, errors = record.series("eval", "error")
    caption = ""
    if len(errors):
        low = int(errors.argmin())
        caption = (
            f"Lowest along the way: {percent(errors[low])} at step {count(steps[low])}. "
            "The headline is the final model, which was not chosen on the test set."
        )
    figures = [
        figure(curves.loss_curves(record), "Losses of the training batches."),
        figure(curves.error_curve(record), caption),
    ]
    lead = "What was minimised, and what came of it, against the training step."
    return section("training", "Training", lead, panels(*figures)) if any(figures) else ""


def pseudo_labels(record: RunRecord) -> str:
    """How much of the unlabelled data was used, and how well."""
    drawing = curves.trust_curves(record)
    if not drawing:
        return ""
    tiles = [
        tile(percent(100 * value), name, meaning)
        for key, name, meaning in (
            ("trusted", "Trusted at the end", "share of unlabelled images that teach the model"),
            ("pseudo_accuracy", "Right at the end", "share of trusted pseudo-labels that are correct"),
        )
        if (value := record.last("train", key)) is not None
    ]
    lead = "How many unlabelled images were trusted with the label the model gave them, and how rightly."
    return section("pseudo-labels", "Pseudo-labels", lead, beside(drawing, *tiles))


def latent(record: RunRecord) -> str:
    """Whether the neural process's latent carries information: a divergence of 0 says that it does not."""
    drawing = curves.latent_curves(record)
    if not drawing:
        return ""
    tiles = [
        tile(f"{value:.2g}", name, meaning)
        for key, name, meaning in (
            ("divergence", "Divergence at the end", "between the latents of target and context points, nats"),
            ("alpha", "α at the end", "skew of the divergence, from the two mean uncertainties"),
        )
        if (value := record.last("train", key)) is not None
    ]
    lead = "How far the target points move the latent variable from what the labelled images alone say."
    return section("latent", "Latent variable", lead, beside(drawing, *tiles))


def notes(record: RunRecord) -> str:
    """Remarks of the caller."""
    items = "".join(f"<li>{text(note)}</li>" for note in record.notes)
    return section("notes", "Notes", "", f"<ul>{items}</ul>") if items else ""


def configuration(record: RunRecord) -> str:
    """Every setting, named as the command line takes it."""
    rows = "".join(f"<tr><td>{text(k)}</td><td>{text(v)}</td></tr>" for k, v in flattened(record.config))
    settings = f'<div class="scroll"><table class="plain config"><tbody>{rows}</tbody></table></div>'
    return section("configuration", "Configuration", "", details("Every setting of this run", settings))


def flattened(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """A nested configuration as dotted keys and values."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def facts(record: RunRecord) -> str:
    """One line below the title: sizes and time."""
    steps = max((number(line.get("step")) or 0 for line in record.records), default=0)
    rate = record.last("train", "images_per_second")
    seconds = record.last("train", "seconds")
    parts = [
        f"{count(len(record.class_names))} classes",
        f"{count(len(record.y))} test images",
        f"{count(steps)} steps" if steps else "",
        f"trained in {duration(seconds)}" if seconds is not None else "",
        f"{count(rate)} images/s" if rate is not None else "",
    ]
    return " · ".join(part for part in parts if part)
