"""The page and the tables of many runs: whole, right, safe, and readable with eleven methods."""

import io
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up_run import Page, make_outcome
from rich.console import Console

from npmatch.metrics import reliability_bins
from npmatch.report import Comparison, Method, Outcome, method_notes, methods_table, table_text, write_report
from npmatch.report.charts import numeric, sweep_panel
from npmatch.report.curves import line_styles, spread_out
from npmatch.report.record import pooled

ALL_SECTIONS = ["headline", "methods", "curves", "classes", "calibration", "runs", "configuration"]
ERRORS = {
    "supervised": 40.0, "mixmatch": 30.0, "remixmatch": 10.0, "uda": 11.0, "fixmatch": 8.0, "flexmatch": 5.5,
    "comatch": 7.0, "semco": 8.5, "mpl": 45.0, "ups": 6.0, "npmatch": 5.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    methods = []
    for name, error in ERRORS.items():
        outcomes = [make_outcome(seed, error * (1 + seed / 20)) for seed in (0, 1)]
        paper = (4.91, 0.04) if name == "npmatch" else None
        methods.append(Method(name, outcomes, paper=paper, iterations=20_000))
    methods.append(Method("npmatch[width=-1]", [], {0: "RuntimeError: -1", 1: "RuntimeError: -1"}, iterations=20_000))
    return Comparison("cifar10-40", methods, {"training.batch": "64"})


def written(comparison, folder) -> str:
    return write_report(comparison, folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def html(comparison, tmp_path_factory) -> str:
    return written(comparison, tmp_path_factory.mktemp("page"))


def test_every_section_and_every_figure_is_there(html):
    page = Page(html)
    assert page.sections == ALL_SECTIONS
    for name, each in (("curves", 1), ("classes", 1), ("calibration", 2)):
        assert set(ERRORS) <= set(page.text[name])
        drawn = [label.rpartition(": ")[2] for label in page.drawings[name]]
        assert all(drawn.count(method) == each for method in ERRORS), "a drawing of its own for every method"
    assert "12 methods · 2 seeds · 20\u202f000 steps" in page.text[""]
    assert {"training.batch", "64"} <= set(page.text["configuration"])


def test_the_table_on_the_page_holds_means_and_deviations_over_seeds(comparison, html):
    headings, *rows = Page(html).rows["methods"]
    assert [row[0][0] for row in rows] == [method.name for method in comparison.methods]
    columns = {"Error, %": ("error", 2), "NLL": ("nll", 3), "ECE, %": ("ece", 1), "UCE, %": ("uce", 1)}
    for method, row in zip(comparison.methods, rows, strict=True):
        shown = dict(zip(map("".join, headings), map("".join, row), strict=True))
        for heading, (key, digits) in columns.items():
            if not method.outcomes:
                assert shown[heading] == "–"
                continue
            values = [run.numbers[key] for run in method.outcomes]
            mean, spread = map(float, shown[heading].split(" ± "))
            assert mean == pytest.approx(np.mean(values), abs=0.51 * 10**-digits)
            assert spread == pytest.approx(np.std(values, ddof=1), abs=0.51 * 10**-digits)
        assert shown["Paper, %"] == ("4.91 ± 0.04" if method.name == "npmatch" else "–")
    notes = {row[0][0]: row[0][1] for row in rows if len(row[0]) > 1}
    assert notes == {"mpl": "did not beat supervised", "npmatch[width=-1]": "failed: RuntimeError: -1"}


def test_rank_correlation_is_scipys(comparison, html):
    from scipy.stats import spearmanr

    words = Page(html).text["classes"]
    for method in comparison.methods[:3]:
        rows = method.classes()
        rho = spearmanr([row.uncertainty for row in rows], [row.accuracy for row in rows]).statistic
        assert words[words.index(method.name) + 1] == f"ρ = {rho:.2f}".replace("-", "−")


def test_page_needs_nothing_from_outside_and_ids_are_unique(html):
    assert not re.search(r"https?://|//\w+\.\w+|@import|url\((?!#)", html)
    elements = Page(html).elements
    assert not {"script", "link", "iframe", "object", "embed", "img"} & {tag for tag, _ in elements}
    ids = [attrs["id"] for _, attrs in elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    references = {a["href"][1:] for _, a in elements if a.get("href")} | set(re.findall(r"url\(#(\w+)\)", html))
    assert references
    assert references <= set(ids)
    drawings = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert not re.findall(r"(?:fill|stroke): *#", drawings)


def bare(name, error, **changes) -> Method:
    numbers = {"error": error, "uce": error / 2, "seconds": 1.0} if error is not None else {"seconds": 1.0}
    return Method(name, [Outcome(0, numbers)], **changes)


def test_a_page_without_predictions_or_without_any_finished_run(tmp_path):
    page = Page(written(Comparison("bare", [bare("a", 3.0), bare("b", None)]), tmp_path))
    assert page.sections == ["headline", "methods", "runs", "configuration"]
    assert "no test images to measure it on" in page.text["methods"]
    failed = Comparison("nothing", [Method("a", [], {0: "no"}), Method("b", [], {0: "yes", 1: "no"})])
    page = Page(written(failed, tmp_path))
    assert page.sections == ["headline", "methods", "runs", "configuration"]
    assert "seed 0 failed: yes; seed 1 failed: no" in page.text["methods"]


def test_numbers_over_seeds(comparison):
    method = comparison.methods[1]
    values = [run.numbers["error"] for run in method.outcomes]
    assert method.mean("error") == pytest.approx(np.mean(values))
    assert method.spread("error") == pytest.approx(np.std(values, ddof=1))
    assert bare("one", 3.0).spread("error") is None
    (steps, errors), deviation = method.curve()
    assert steps.tolist() == list(range(100, 1101, 100)), "evaluations along the way, and the end"
    table = np.array([run.curve[1] for run in method.outcomes])
    assert errors == pytest.approx(table.mean(0))
    assert deviation == pytest.approx(table.std(0, ddof=1))
    rows = method.classes()
    assert [row.name for row in rows] == [f"class-{k}" for k in range(10)]
    assert rows[3].accuracy == pytest.approx(np.mean([run.classes[3].accuracy for run in method.outcomes]))


def test_curves_are_averaged_where_every_seed_was_looked_at():
    def run(steps, errors):
        return Outcome(0, {}, (np.array(steps, float), np.array(errors, float)))

    method = Method("m", [run([1, 2, 3], [9, 8, 7]), run([2, 3, 4], [6, 5, 4]), run([], [])])
    (steps, errors), deviation = method.curve()
    assert (steps.tolist(), errors.tolist()) == ([2, 3], [7, 6])
    assert deviation == pytest.approx([math.sqrt(2)] * 2)


def test_pooled_bins_are_the_bins_of_all_images_together():
    draw = torch.Generator().manual_seed(0)
    parts = [torch.rand(n, 4, generator=draw).softmax(-1) * 1.0 for n in (5, 70, 300)]
    labels = [torch.randint(4, (len(p),), generator=draw) for p in parts]
    together = reliability_bins(torch.cat(parts), torch.cat(labels))
    found = pooled([reliability_bins(p, y) for p, y in zip(parts, labels, strict=True)])
    for name in ("edges", "count", "score", "outcome"):
        torch.testing.assert_close(getattr(found, name), getattr(together, name), equal_nan=True)
    assert Method("no run", []).reliability("confidence") is None


@given(st.lists(st.floats(0, 300), min_size=1, max_size=20))
def test_names_at_the_ends_of_curves_keep_apart_and_near(wanted):
    wanted = np.sort(np.array(wanted))
    places = spread_out(wanted, 12.0, 0.0, 300.0)
    assert (np.diff(places) >= 12 - 1e-6).all()
    assert places[0] >= -1e-6
    assert places[-1] <= 300 + 1e-6
    if (np.diff(wanted) >= 12).all():
        assert places == pytest.approx(wanted)


def test_no_two_methods_are_drawn_alike(comparison):
    styles = line_styles(comparison.methods)
    assert len(set(styles)) == len(styles) == 12


def tick_words(drawing: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", drawing)


def test_a_sweep_is_drawn_against_its_values():
    far = [bare(value, error) for value, error in (("0.001", 9.0), ("0.1", 5.0), ("10", 7.0))]
    words = tick_words(sweep_panel(far, "algorithm.beta", "error", "test error, %"))
    assert words[:4] == ["0.001", "0.1", "10", "algorithm.beta"]  # a logarithmic axis whose ticks are the values
    near = [bare(value, error) for value, error in (("1", 9.0), ("5", 5.0), ("30", 7.0))]
    words = tick_words(sweep_panel(near, "algorithm.samples", "error", "test error, %"))
    assert {"0", "10", "20", "30"} <= set(words)
    named = [bare("js", 5.0), Method("kl", [], {0: "no"}), bare("js_dual", 6.0)]
    words = tick_words(sweep_panel(named, "algorithm.divergence", "uce", "UCE, %"))
    assert words[:3] == ["js", "kl", "js_dual"]
    assert sweep_panel([named[1]], "x", "error", "") == ""


def test_a_sweep_page_has_its_figure_first_and_no_baseline(tmp_path):
    methods = [bare(value, error) for value, error in (("0.001", 9.0), ("0.1", 5.0))]
    page = Page(written(Comparison("s", methods, swept="algorithm.beta"), tmp_path))
    assert page.sections[:3] == ["headline", "sweep", "methods"]
    assert "2 values · 1 seed" in page.text[""]
    assert "algorithm.beta" in page.text["methods"]


def test_names_are_numbers_only_if_all_are():
    assert numeric(["1", "0.5", "1e-3"]) == [1.0, 0.5, 0.001]
    assert numeric(["1", "none"]) is None
    assert numeric(["1", "nan"]) is None


def test_the_table_of_a_terminal(comparison):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(methods_table(comparison.rows()))
    assert max(len(line) for line in console.export_text().splitlines()) <= 80
    lines = table_text(comparison.rows()).splitlines()
    ours = next(line for line in lines if line.strip().startswith("npmatch "))
    row = next(row for row in comparison.rows() if row["method"] == "npmatch")
    assert f"{row['error']:.2f} ± {row['error_std']:.2f}   4.91 ± 0.04" in ours
    assert lines[-2:] == method_notes(comparison.rows())
    assert lines[-2:] == ["mpl: did not beat supervised", "npmatch[width=-1]: failed: RuntimeError: -1"]
    headings = [column.header for column in methods_table([bare_row(iterations=5), bare_row(iterations=9)]).columns]
    assert [str(heading) for heading in headings] == ["Method", "Error, %", "NLL", "ECE, %", "UCE, %", "Steps", "Time"]


def test_the_lowest_number_of_a_column_is_bold_and_names_are_not_markup():
    rows = Comparison("", [bare("[red]a", 5.0), bare("b", 7.0)]).rows()
    rows[1] |= {"uce": 1.0, "ece": 2.0}
    columns = {str(column.header): column._cells for column in methods_table(rows).columns}
    assert [str(cell) for cell in columns["Method"]] == ["[red]a", "b"]
    assert [cell.style for cell in columns["Error, %"]] == ["bold", ""]
    assert [cell.style for cell in columns["UCE, %"]] == ["", "bold"]
    assert [cell.style for cell in columns["ECE, %"]] == ["", ""], "a lone number has nothing to be lowest of"


def bare_row(**changes):
    return {"method": "a", "error": 1.0, "note": "", **changes}


def test_equal_runs_give_equal_pages(comparison, html, tmp_path):
    assert written(comparison, tmp_path) == html


@pytest.mark.parametrize(("ratio", "shown"), [(20.0, True), (2.0, False), (None, False)])
def test_means_over_classes_are_columns_only_where_classes_are_uneven(ratio, shown):
    numbers = {"error": 9.0, "balanced_error": 12.5, "geometric_accuracy": 86.25}
    outcomes = [Outcome(seed, numbers | ({} if ratio is None else {"class_ratio": ratio})) for seed in (0, 1)]
    text = table_text(Comparison("tail", [Method("npmatch", outcomes)]).rows())
    assert ("Balanced, %" in text and "12.50 ± 0.00" in text and "86.25 ± 0.00" in text) is shown
    assert ("G-mean" in text) is shown
