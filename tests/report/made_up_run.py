"""A made-up run, and a reader of pages that knows HTML only as the standard library does."""

import math
from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Any

import torch

from npmatch.report import Comparison, Method, Outcome, RunRecord, gallery_indices
from npmatch.types import Prediction

VOID = {"meta", "br", "img", "link"}


class Page(HTMLParser):
    """Elements, and by section text, rows of tables and names of drawings; fails on tags not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.rows: dict[str, list[list[list[str]]]] = {}  # section → rows → cells → pieces of text
        self.drawings: dict[str, list[str]] = {}  # section → what each drawing is called for those who cannot see it
        self.section = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        elif tag == "tr":
            self.rows.setdefault(self.section, []).append([])
        elif tag in ("td", "th"):
            self.rows[self.section][-1].append([])
        elif tag == "svg":
            self.drawings.setdefault(self.section, []).append(dict(attrs)["aria-label"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.text.setdefault(self.section, []).append(data.strip())
            if {"td", "th"} & set(self.open):
                self.rows[self.section][-1][-1].append(data.strip())

    @property
    def sections(self) -> list[str]:
        return [attrs["id"] or "" for tag, attrs in self.elements if tag == "section"]


def train_line(step: int) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": step,
        "seconds": step / 10,
        "loss": 2.5 * math.exp(-step / 100),
        "loss_labeled": 1.5 * math.exp(-step / 100),
        "loss_contrast": 0.1,
        "divergence": 0.3 * math.exp(-step / 50),
        "alpha": 0.5,
        "trusted": step / 1000,
        "pseudo_accuracy": None if step < 50 else 0.9,
        "images_per_second": 5000.0,
    }


def make_record(num_classes: int = 10, n: int = 200, seed: int = 0, **changes: Any) -> RunRecord:
    draw = torch.Generator().manual_seed(num_classes + 1000 * seed)
    y = torch.randint(num_classes, (n,), generator=draw)
    logits = 2 * torch.randn(n, num_classes, generator=draw)
    logits[torch.arange(n), y] += 3
    probs = logits.softmax(-1)
    prediction = Prediction(probs, torch.special.entr(probs).sum(-1))
    shown = gallery_indices(prediction, y)
    pixels = torch.randint(256, (len(shown), 3, 8, 8), generator=draw).to(torch.uint8)
    lines = [train_line(step) for step in range(10, 1001, 10)]
    lines += [{"kind": "eval", "step": step, "error": 50 - step / 25} for step in range(100, 1001, 100)]
    settings: dict[str, Any] = {
        "records": lines,
        "class_names": [f"class-{k}" for k in range(num_classes)],
        "prediction": prediction,
        "y": y,
        "gallery": dict(zip(shown, pixels, strict=True)),
        "num_labeled": 40,
    }
    return RunRecord(**(settings | changes))


def page_of(record: RunRecord, others: Iterable[Method] = (), **changes: Any) -> Comparison:
    """What the page of a run shows."""
    settings: dict[str, Any] = {"title": "A run", "settings": {"seed": 0, "data.labels": 40}}
    methods = [Method("npmatch", [record.outcome(0)]), *others]
    return Comparison(**({"methods": methods, "run": record} | settings | changes))


def make_outcome(seed: int, error: float, **changes: Any) -> Outcome:
    """A finished run that ends at `error` per cent by its log; its figures are those of predictions of its own."""
    record = make_record(seed=seed + round(100 * error), **changes)
    final = {**record.scores.asdict(), "error": error, "seconds": 100.0 + seed}
    record.records.append({"kind": "final", "step": 1100, **final})
    return record.outcome(seed)
