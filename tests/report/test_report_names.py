"""Whatever a user named is text on a page: the page of hostile names is built like the page of harmless ones."""

import pytest
import torch
from made_up_run import Page, make_outcome, make_record, page_of

from npmatch.report import Comparison, Method, Outcome, table_text
from npmatch.report.page import html_page

HOSTILE = ["<script>alert(1)</script>", '"><img src=x>', "'><b onclick='alert(1)'>", "{{ 7*7 }}", "a&lt;b", "$x^2$"]
# Of the same lengths, so that figures have room for the same names; no two alike.
HARMLESS = [chr(ord("a") + i) * len(name) for i, name in enumerate(HOSTILE)]


def page_of_a_run(names: list[str]) -> Page:
    pictures = {i: torch.zeros(3, 8, 8, dtype=torch.uint8) for i in range(40)}
    record = make_record(len(names), class_names=names, gallery=pictures)
    record.records.extend({"kind": "train", "step": 5, f"loss_{name}": 1.0} for name in names)
    others = [Method(name, [Outcome(0, {"error": 1.0 + i})], {1: name}) for i, name in enumerate(names)]
    settings = {name: [name] for name in names}
    return Page(html_page(page_of(record, others, title=" ".join(names), settings=settings)))


def comparison_of(names: list[str], swept: bool) -> Comparison:
    methods = [
        Method(name, [make_outcome(0, 10.0 + i, num_classes=len(names), class_names=names)], {1: name})
        for i, name in enumerate(names)
    ]
    settings, apart = {name: name for name in names}, {name: list(names) for name in names}
    return Comparison(" ".join(names), methods, settings, swept=names[1] if swept else None, apart=apart)


def structure(page: Page) -> list[tuple[str, list[str]]]:
    """What a browser builds from the page, less its words; ids are hashes of names, references of ids."""
    return [(tag, list(attrs)) for tag, attrs in page.elements]


def assert_names_are_text(page: Page, harmless: Page, sections: list[str]) -> None:
    assert structure(page) == structure(harmless)
    for section in sections:
        words = " ".join(page.text[section])
        assert all(name in words for name in HOSTILE), section


def test_names_on_the_page_of_a_run_are_text():
    page = page_of_a_run(HOSTILE)
    sections = ["", "methods", "training", "classes", "confusion", "gallery", "configuration"]
    assert_names_are_text(page, page_of_a_run(HARMLESS), sections)
    titles = [attrs["title"] for tag, attrs in page.elements if tag == "td" and "title" in attrs]
    assert [title.rpartition(":")[0] for title in titles] == [f"{a} taken for {b}" for a in HOSTILE for b in HOSTILE]


@pytest.mark.parametrize("swept", [False, True])
def test_names_on_the_page_of_many_runs_are_text(swept):
    page, harmless = (Page(html_page(comparison_of(names, swept))) for names in (HOSTILE, HARMLESS))
    sections = ["", "methods", "curves", "classes", "calibration", "runs", "configuration"]
    assert_names_are_text(page, harmless, sections)
    drawings = [label.rpartition(": ")[2] for label in page.drawings["calibration"]]
    assert drawings == 2 * HOSTILE
    if swept:
        assert f"Against {HOSTILE[1]}" in page.text["sweep"]


def test_names_in_the_table_of_a_terminal_are_text():
    names = ["[red]a[/red]", *HOSTILE]
    comparison = Comparison("", [Method(name, [], {0: name}) for name in names])
    text = table_text(comparison.rows(), comparison.heading)
    assert all(text.count(name) >= 2 for name in names)


def test_control_characters_are_replaced_on_both_pages():
    odd = ["犬", "chien\ud800", "tab\there", "nul\0", "\u202egnp.exe", "x" * 300]
    shown = ["犬", "chien\ufffd", "tab here", "nul\ufffd", "\ufffdgnp.exe", "x" * 300]
    page = Page(html_page(page_of(make_record(len(odd), class_names=odd))))
    assert set(shown) <= set(page.text["confusion"])
    methods = [Method(name, [Outcome(0, {"error": 1.0})]) for name in odd]
    many = html_page(Comparison(odd[1], methods, dict.fromkeys(odd, "\x1b[31m")))
    assert set(shown) <= set(Page(many).text["methods"])
    assert not {"\ud800", "\0", "\u202e", "\x1b"} & set(many)
