"""The page of one run or of many: a single HTML file without scripts, fonts or links to anything outside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.report.formatting import printable
from npmatch.report.record import Comparison
from npmatch.report.sections import facts, page_sections
from npmatch.report.style import CSS


def as_text(value: object) -> object:
    """A value for a template: Markup as it is, everything else as one line of text, which Jinja escapes."""
    return value if isinstance(value, Markup) else printable(value)


TEMPLATES = Environment(
    loader=PackageLoader("npmatch.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=as_text,
)


def write_report(comparison: Comparison, path: Path) -> Path:
    """Writes the page to `path` atomically and returns the path."""
    page = html_page(comparison)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode("utf-8"))
    except OSError as problem:
        raise NPMatchError(f"cannot write the report {path}: {problem.strerror}") from problem
    return path


def html_page(comparison: Comparison) -> str:
    """The page as HTML."""
    sections = [_render(template, data) for template, data in page_sections(comparison)]
    head = {"title": comparison.title, "facts": facts(comparison), "css": Markup(CSS)}
    return str(_render("page.html", {**head, "sections": sections}))


def _render(template: str, data: Mapping[str, object]) -> Markup:
    return Markup(TEMPLATES.get_template(template).render(data))
