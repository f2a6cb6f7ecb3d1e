"""The report of many runs: one page without scripts, fonts or addresses of anything outside it."""

from __future__ import annotations

from pathlib import Path

from npmatch.report import many_sections as sections
from npmatch.report.methods import Comparison
from npmatch.report.page import document, write_page


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """Writes the page to `path`, whole or not at all, and returns the path."""
    return write_page(comparison_page(comparison), path)


def comparison_page(comparison: Comparison) -> str:
    """The whole page."""
    parts = [
        sections.headline(comparison),
        sections.sweep_section(comparison),
        sections.methods_section(comparison),
        sections.curves_section(comparison),
        sections.classes_section(comparison),
        sections.calibration_section(comparison),
        sections.decided_section(comparison),
        sections.runs_section(comparison),
        sections.settings_section(comparison),
    ]
    return document(comparison.title, sections.facts(comparison), parts)
