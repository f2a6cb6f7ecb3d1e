"""Sections of the page of many runs; empty where there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npmatch.metrics import Reliability
from npmatch.report import many_charts, many_curves
from npmatch.report.elements import details, figure, panels, section, table, text, tile
from npmatch.report.formatting import count, decimal, duration, percent
from npmatch.report.many_tables import Row, best, columns
from npmatch.report.methods import BASELINE, DECIDED, NUMBERS, OURS, TARGET, Comparison, Method, pooled
from npmatch.report.model_sections import rank_correlation
from npmatch.report.tables import lowest

MEANING = (
    "Means over seeds ± sample standard deviation, of the averaged model after the last step; the lowest is bold. "
    "Trusted: share of unlabelled images that taught the model at the end. Right: share of those with the right label."
)
PAPER = " Paper: the published error for this task, at 2<sup>20</sup> steps and three seeds."


def headline(comparison: Comparison) -> str:
    """The numbers a reader came for."""
    rows, methods = comparison.rows(), comparison.methods
    tiles = [
        tile(percent(rows[i][key], 2), name, text(rows[i]["method"]))
        for key, name in (("error", "Lowest error"), ("ece", "Lowest ECE"), ("uce", "Lowest UCE"))
        if (i := lowest(rows, [key])[key]) is not None
    ]
    finished, failed = sum(len(m.outcomes) for m in methods), sum(len(m.problems) for m in methods)
    seconds = sum(sum(method.values("seconds")) for method in methods)
    tiles.append(tile(count(finished), "Runs", f"{count(failed)} failed" if failed else "all of them finished"))
    tiles.append(tile(duration(seconds), "Training", "all runs together"))
    return section("headline", "In numbers", "", f'<div class="tiles">{"".join(tiles)}</div>')


def methods_section(comparison: Comparison) -> str:
    """The table, and the errors as a figure."""
    rows = comparison.rows()
    shown = columns(rows)
    cells = [[row["method"], *(column.write(row) for column in shown)] for row in rows]
    headings = [comparison.heading, *(column.heading for column in shown)]
    lead = MEANING + (PAPER if any(column.key == "paper_error" for column in shown) else "")
    drawing = "" if comparison.swept else many_charts.error_rows(comparison.methods)
    notes = [row["note"] for row in rows]
    body = table(headings, cells, best(rows, shown), notes)
    title = "All values" if comparison.swept else "All methods"
    return section("methods", title, lead, body, wide(drawing))


def sweep_section(comparison: Comparison) -> str:
    """Error and UCE against the swept value."""
    if comparison.swept is None:
        return ""
    drawings = [
        many_charts.sweep_panel(comparison.methods, comparison.swept, key, label)
        for key, label in (("error", "test error, %"), ("uce", "UCE, %"))
    ]
    lead = "Mean ± standard deviation over seeds; the small dots are the seeds."
    return section("sweep", f"Against {text(comparison.swept)}", lead, panels(*(figure(d) for d in drawings)))


def curves_section(comparison: Comparison) -> str:
    """Test error against the step."""
    methods = [method for method in comparison.methods if len(method.curve()[0][0])]
    if not methods:
        return ""
    names = {method.name for method in methods}
    landmarks = [(OURS, " NP-Match is the blue line."), (BASELINE, " Supervised training is the dashed grey one.")]
    lead = "Test error of the averaged model along the way, mean over seeds." + "".join(
        words for name, words in landmarks if name in names
    )
    each = multiples(methods, lambda method: many_curves.curve_panel(method, methods), _error_words)
    below = "<h3>One by one, with the standard deviation over seeds</h3>" + each if len(methods) > 1 else ""
    return section("curves", "Learning curves", lead, wide(many_curves.curves_together(methods)), below)


def classes_section(comparison: Comparison) -> str:
    """Does each method's uncertainty know which classes are hard?"""
    found = {method.name: [row for row in method.classes() if row.n] for method in comparison.methods}
    methods = [method for method in comparison.methods if found[method.name]]
    if not methods:
        return ""

    def draw(method: Method) -> str:
        return many_charts.class_panel(found[method.name], method.name)

    def words(method: Method) -> str:
        return f"ρ = {decimal(rank_correlation(found[method.name]), 2).replace('-', '−')}"

    lead = (
        "A point is a class, averaged over seeds. Where uncertainty is worth something, the uncertain classes are the "
        "inaccurate ones: Spearman’s rank correlation ρ is near −1. Every panel has axes of its own."
    )
    return section("classes", "Class by class", lead, multiples(methods, draw, words))


def calibration_section(comparison: Comparison) -> str:
    """Can confidence and uncertainty be taken at their word?"""
    body = [
        f"<h3>{title}</h3>{drawings}"
        for title, drawings in (
            ("Confidence against accuracy", _reliability(comparison, "confidence", "accuracy", "ece")),
            (
                "Uncertainty, as a share of its maximum, against error",
                _reliability(comparison, "uncertainty", "error", "uce"),
            ),
        )
        if drawings
    ]
    lead = "Bars on the dashed diagonal are calibrated; the paler a bar, the fewer test images it stands for."
    return section("calibration", "Calibration", lead, *body) if body else ""


def _reliability(comparison: Comparison, score: str, outcome: str, key: str) -> str:
    """A reliability diagram of every method, over the test images of all its seeds."""
    bins: dict[str, Reliability] = {}
    for method in comparison.methods:
        of_runs = [getattr(run, score) for run in method.outcomes]
        if together := pooled([b for b in of_runs if b is not None]):
            bins[method.name] = together
    methods = [method for method in comparison.methods if method.name in bins]
    if not methods:
        return ""
    return multiples(
        methods,
        lambda method: many_charts.reliability_panel(bins[method.name], score, outcome, method.name),
        lambda method: f"{key.upper()} {percent(method.mean(key))}",
    )


def decided_section(comparison: Comparison) -> str:
    """What held-out labels made of the runs that had some."""
    methods = [method for method in comparison.methods if any(run.decided for run in method.outcomes)]
    if not methods:
        return ""
    headings = ["T", "ECE", "ECE at T", "UCE", "UCE at T", "Kept", "Error among kept"]
    cells = []
    for method in methods:
        found = [method.mean_decided(key) for key in DECIDED]
        cells.append([method.name, decimal(found[0], 2), *(percent(value) for value in found[1:])])
    lead = (
        "On the test images, by labels that were held out of training: calibration before and at the fitted "
        f"temperature T, and what is kept when the error among it shall be at most {percent(100 * TARGET, 0)}. "
        "Means over seeds."
    )
    return section("decided", "By held-out labels", lead, table([comparison.heading, *headings], cells))


def runs_section(comparison: Comparison) -> str:
    """Every single run."""
    rows: list[Row] = []
    for method in comparison.methods:
        for run in method.outcomes:
            rows.append({"method": f"{method.name}, seed {run.seed}", **run.numbers})
        for seed, problem in method.problems.items():
            rows.append({"method": f"{method.name}, seed {seed}", "note": f"failed: {problem}"})
    shown = [column for column in columns(rows) if column.key in NUMBERS]
    cells = [[row["method"], *(column.write(row) for column in shown)] for row in rows]
    body = table(["Run", *(column.heading for column in shown)], cells, notes=[row.get("note", "") for row in rows])
    return section("runs", "Every run", "", details(f"{len(rows)} runs, seed by seed", body))


def settings_section(comparison: Comparison) -> str:
    """What sets the methods apart, and what all runs have in common."""
    apart = table(
        ["setting", *(method.name for method in comparison.methods)],
        [[key, *map(str, values)] for key, values in comparison.apart.items()],
    )
    rows = "".join(f"<tr><td>{text(k)}</td><td>{text(v)}</td></tr>" for k, v in comparison.settings.items())
    body = f'<div class="scroll"><table class="plain config"><tbody>{rows}</tbody></table></div>'
    parts = [details("What sets them apart", apart)] if comparison.apart else []
    return section("configuration", "Configuration", "", *parts, details("What all runs have in common", body))


def multiples(methods: Sequence[Method], draw: Callable[[Method], str], words: Callable[[Method], str]) -> str:
    """A small panel for every method, below its name and a few words."""
    parts = []
    for method in methods:
        name = f"<h3>{text(method.name)}</h3><small>{text(words(method))}</small>"
        parts.append(f"<div>{name}{figure(draw(method))}</div>")
    return f'<div class="multiples">{"".join(parts)}</div>'


def wide(drawing: str) -> str:
    """A drawing that needs the width of the page, or to be scrolled on a narrow one."""
    return f'<div class="wide">{figure(drawing)}</div>' if drawing else ""


def _error_words(method: Method) -> str:
    return percent(method.mean("error"))


def facts(comparison: Comparison) -> str:
    """One line below the title."""
    methods = comparison.methods
    seeds = {seed for m in methods for seed in [*m.problems, *(run.seed for run in m.outcomes)]}
    parts = [(len(methods), "value" if comparison.swept else "method"), (len(seeds), "seed")]
    steps = {method.iterations for method in methods}
    parts += [(n, "step") for n in steps if n is not None and len(steps) == 1]
    return " · ".join(f"{count(n)} {word}{'s' if n != 1 else ''}" for n, word in parts)
