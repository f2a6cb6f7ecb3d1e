"""The page is whole, says what the metrics say, needs nothing from outside, and runs nobody's script."""

import math
import re
from dataclasses import replace

import pytest
import torch
from made_up_run import Page, make_record, page_of
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss

from npmatch.errors import NPMatchError
from npmatch.metrics import scores
from npmatch.report import Method, Outcome, RunRecord, write_report
from npmatch.types import Prediction

ALL_SECTIONS = [
    "headline",
    "training",
    "pseudo-labels",
    "latent",
    "classes",
    "calibration",
    "selective",
    "confusion",
    "gallery",
    "configuration",
]
ALWAYS = ["headline", "classes", "calibration", "selective", "confusion", "configuration"]


@pytest.fixture
def record() -> RunRecord:
    return make_record()


def written(record, folder, **changes) -> str:
    return write_report(page_of(record, **changes), folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def html(tmp_path_factory) -> str:
    return written(make_record(), tmp_path_factory.mktemp("whole"))


def test_every_section_is_there_and_every_tag_closed(html):
    page = Page(html)
    assert page.sections == ALL_SECTIONS
    assert "A run" in page.text[""]
    assert {"data.labels", "40"} <= set(page.text["configuration"])


def test_headline_numbers_are_those_of_scikit_learn_and_the_metrics(record, html):
    words = Page(html).text["headline"]
    shown = {name: float(value.removesuffix(" %")) for name, value in zip(words[1::3], words[2::3], strict=True)}
    y, probs = record.y.numpy(), record.prediction.probs.double().numpy()
    result = scores(record.prediction, record.y)
    assert shown.pop("Error") == pytest.approx(100 - 100 * accuracy_score(y, probs.argmax(1)), abs=0.051)
    assert shown.pop("NLL") == pytest.approx(log_loss(y, probs / probs.sum(1, keepdims=True)), abs=0.00051)
    truth = torch.nn.functional.one_hot(record.y).numpy()
    assert shown.pop("Brier") == pytest.approx(((probs - truth) ** 2).sum(1).mean(), abs=0.00051)
    assert shown.pop("ECE") == pytest.approx(result.ece, abs=0.051)
    assert shown.pop("UCE") == pytest.approx(result.uce, abs=0.051)
    assert shown == {"Labels": 40}


def test_a_run_beside_other_methods(record, tmp_path):
    others = [Method("nearest neighbour", [Outcome(0, {"error": 4.5, "ece": 2.0})])]
    page = Page(written(record, tmp_path, others=others))
    assert page.sections == ["headline", "methods", *ALL_SECTIONS[1:]]
    headings, *rows = page.rows["methods"]
    assert [row[0] for row in rows] == [["npmatch"], ["nearest neighbour"]]
    shown = [dict(zip(map("".join, headings), map("".join, row), strict=True)) for row in rows]
    assert float(shown[0]["Error, %"]) == pytest.approx(scores(record.prediction, record.y).error, abs=0.0051)
    assert shown[1]["Error, %"] == "4.50"


def test_page_needs_nothing_from_outside(html):
    assert not re.search(r"https?://|//\w+\.\w+|@import|url\((?!#)", html)
    elements = Page(html).elements
    assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in elements}
    for _, attrs in elements:
        assert (attrs.get("src") or "data:image/png").startswith("data:image/png")
        assert (attrs.get("href") or "#").startswith("#")


def test_ids_are_unique_and_every_reference_has_its_target(html):
    elements = Page(html).elements
    ids = [attrs["id"] for _, attrs in elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    references = {a["href"][1:] for _, a in elements if a.get("href")} | set(re.findall(r"url\(#(\w+)\)", html))
    assert references
    assert references <= set(ids)


def test_figures_take_their_colours_from_the_page(html):
    drawings = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    used = set(re.findall(r"var\(--([\w-]+)\)", "".join(drawings)))
    assert used >= {"ink", "muted", "grid", "line-1", "line-2"}
    style = html[: html.index("</style>")]
    assert all(f"--{name}:" in style for name in used)
    # What is not a variable would be invisible in one of the two modes.
    assert not re.findall(r"(?:fill|stroke): *#", "".join(drawings))


def test_missing_and_broken_values_are_left_out(tmp_path):
    lines = [
        {"kind": "train", "step": 1, "loss": math.nan, "trusted": math.inf},
        {"kind": "train", "step": 2, "loss": 1.0},
        {"kind": "train", "step": 3, "loss": None, "pseudo_accuracy": None},
        {"kind": "train", "step": None, "loss": 3.0},
        {"kind": "train", "step": 4, "loss": "nan"},
        {"kind": "eval", "step": 4},
        {"kind": "final", "step": 4, "error": math.nan},
    ]
    others = [Method("a", [Outcome(0, {"error": math.nan})]), Method("b", [Outcome(0, {})])]
    page = Page(written(make_record(records=lines), tmp_path, others=others))
    assert page.sections == [
        "headline",
        "methods",
        *(name for name in ALL_SECTIONS[1:] if name not in ("pseudo-labels", "latent")),
    ]
    assert "nan" not in " ".join(word for words in page.text.values() for word in words).split()


@pytest.mark.parametrize("num_classes", [2, 3, 12, 30])
def test_a_record_of_a_prediction_alone(num_classes, tmp_path):
    bare = make_record(num_classes, records=[], gallery={}, num_labeled=None)
    page = Page(written(bare, tmp_path))
    assert page.sections == ALWAYS
    assert "Labels" not in page.text["headline"]


def test_one_image_and_one_seen_class(tmp_path):
    certain = Prediction(torch.tensor([[1.0, 0.0]]), torch.zeros(1))
    shown = {0: torch.zeros(1, 4, 4, dtype=torch.uint8)}
    record = make_record(2, prediction=certain, y=torch.tensor([0]), gallery=shown)
    page = Page(written(record, tmp_path))
    assert page.sections == ALL_SECTIONS
    assert "–" in page.text["classes"]  # no correlation of a single class


def test_confusion_cells_are_the_counts_and_many_classes_have_none(tmp_path):
    record = make_record(5)
    counts = confusion_matrix(record.y, record.prediction.label).ravel().tolist()
    cells = [
        attrs["title"] for tag, attrs in Page(written(record, tmp_path)).elements if tag == "td" and "title" in attrs
    ]
    assert [int(cell.rsplit(" ", 1)[1]) for cell in cells] == counts
    assert "confusion" not in Page(written(make_record(31), tmp_path)).sections


def test_equal_runs_give_equal_pages(record, html, tmp_path):
    assert written(record, tmp_path) == html


def test_a_report_that_fails_leaves_the_old_one_alone(record, tmp_path):
    before = written(record, tmp_path)
    page = page_of(record)
    diverged = Prediction(record.prediction.probs * math.nan, record.prediction.entropy)
    with pytest.raises(NPMatchError, match="diverged"):
        write_report(replace(page, run=replace(record, prediction=diverged)), tmp_path / "report.html")
    with pytest.raises(NPMatchError, match="cannot write"):
        write_report(page, tmp_path / "report.html" / "below-a-file.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_write_report_makes_the_folder_and_returns_the_path(record, tmp_path):
    path = tmp_path / "new" / "folder" / "report.html"
    assert write_report(page_of(record), path) == path
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
