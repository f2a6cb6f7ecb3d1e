"""The report of a run: a single HTML file without scripts, fonts or addresses of anything outside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.metrics import scores
from npmatch.report import decision_sections, model_sections, run_sections
from npmatch.report.elements import text
from npmatch.report.record import RunRecord
from npmatch.report.style import CSS

# The browser itself refuses anything but the page's own style and inline images, whatever a class is called.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(record: RunRecord, path: Path) -> Path:
    """Writes the page to `path`, whole or not at all, and returns the path."""
    return write_page(html_page(record), path)


def write_page(page: str, path: Path) -> Path:
    """Writes a page, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode("utf-8"))
    except OSError as problem:
        raise NPMatchError(f"cannot write the report {path}: {problem.strerror}") from problem
    return path


def html_page(record: RunRecord) -> str:
    """The whole page; fails where prediction, labels and class names do not belong together."""
    record = replace(record, prediction=record.prediction.to("cpu"), y=record.y.cpu())
    result = scores(record.prediction, record.y)
    parts = [
        run_sections.headline(record, result),
        run_sections.comparison(record),
        run_sections.training(record),
        run_sections.pseudo_labels(record),
        run_sections.latent(record),
        model_sections.classes(record),
        model_sections.calibration(record, result),
        decision_sections.calibrated(record, result),
        model_sections.selective(record),
        decision_sections.abstention(record),
        model_sections.confusions(record),
        model_sections.gallery(record),
        run_sections.notes(record),
        run_sections.configuration(record),
    ]
    return document(record.title, run_sections.facts(record), parts)


def document(title: str, facts: str, parts: Sequence[str]) -> str:
    """A page of sections; those that are empty are left out."""
    title = text(title)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{title}</title>
<style>{CSS}</style>
</head>
<body>
<header><h1>{title}</h1><p class="facts">{text(facts)}</p></header>
<main>
{"".join(part + chr(10) for part in parts if part)}</main>
<footer>Made by npmatch. Error, ECE, UCE, NLL and Brier are the better the lower.</footer>
</body>
</html>
"""
