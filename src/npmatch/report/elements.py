"""The few pieces of HTML the sections are put together from; whatever a user named passes through `text`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from npmatch.report.formatting import printable


def text(value: object) -> str:
    """Anything as harmless text for a page, inside an element or a quoted attribute."""
    return escape(printable(value))


def section(name: str, title: str, lead: str, *body: str) -> str:
    """A card of the page: `name` is its anchor, `lead` one sentence on how to read it."""
    opening = f'<p class="lead">{lead}</p>' if lead else ""
    return f'<section id="{name}"><h2>{title}</h2>{opening}{"".join(body)}</section>'


def tile(value: str, name: str, meaning: str) -> str:
    """One headline number with what it means."""
    return f'<div class="tile"><span>{name}</span><b>{text(value)}</b><small>{meaning}</small></div>'


def figure(drawing: str, caption: str = "") -> str:
    """A drawing with its caption, or nothing where there is no drawing."""
    if not drawing:
        return ""
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f"<figure>{drawing}{below}</figure>"


def beside(drawing: str, *tiles: str) -> str:
    """A drawing with the numbers to take from it at its side, or below it on a narrow screen."""
    return f'<div class="beside">{figure(drawing)}<div class="words">{"".join(tiles)}</div></div>'


def panels(*figures: str) -> str:
    """Figures side by side where the screen is wide enough, else one below the other."""
    return f'<div class="panels">{"".join(figures)}</div>'


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    best: Sequence[int | None] = (),
    notes: Sequence[str] = (),
) -> str:
    """A table whose first column holds names; `best` names, for each further column, the row to stress.

    `notes` holds a remark for each row, below its name, or nothing.
    """
    head = "".join(f"<th{' class=n' if i else ''}>{text(name)}</th>" for i, name in enumerate(headings))
    lines = []
    for r, row in enumerate(rows):
        stressed = ["best" if c < len(best) and best[c] == r else "" for c in range(len(row) - 1)]
        numbers = [f'<td class="n {stress}">{text(cell)}</td>' for cell, stress in zip(row[1:], stressed, strict=True)]
        note = f'<small class="note">{text(notes[r])}</small>' if r < len(notes) and notes[r] else ""
        lines.append(f"<tr><td>{text(row[0])}{note}</td>{''.join(numbers)}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table class="plain">{body}</table></div>'


def details(summary: str, body: str) -> str:
    """Something to unfold."""
    return f"<details><summary>{summary}</summary><div>{body}</div></details>"
