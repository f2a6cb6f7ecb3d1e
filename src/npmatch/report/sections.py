"""The sections of a page in order; a section without data is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from markupsafe import Markup

from npmatch.report import charts, curves, forecast
from npmatch.report import run_sections as of_run
from npmatch.report.formatting import count, decimal, duration, percent
from npmatch.report.record import BASELINE, DECIDED, NUMBERS, OURS, TARGET, Comparison, Method, RunRecord
from npmatch.report.run_sections import Section, Tile, rank_correlation, signed
from npmatch.report.tables import Line, columns, lines, lowest


class Panel(NamedTuple):
    """A small drawing of one method, with its name and a caption."""

    name: str
    words: str
    drawing: Markup


def page_sections(page: Comparison) -> list[Section]:
    """The sections of the page, in order."""
    run = page.run
    if run is None:
        trained, judged = [curves_of_methods(page)], [decided(page), runs(page)]
    else:
        trained = [of_run.training(run), of_run.pseudo_labels(run), of_run.latent(run)]
        if not len(run.y):  # without test images nothing is judged
            begin = [headline(page), methods(page)]
            found = [*begin, of_run_forecast(run), *trained, configuration(page)]
            return [section for section in found if section is not None]
        judged = [of_run.calibrated(run), of_run.selective(run), of_run.abstention(run)]
        judged += [of_run_forecast(run), of_run.confusions(run), of_run.gallery(run)]
    begin = [headline(page), sweep(page), methods(page)]
    found = [*begin, *trained, classes(page), calibration(page), *judged, configuration(page)]
    return [section for section in found if section is not None]


def of_run_forecast(run: RunRecord) -> Section | None:
    """The error with more labels, if it was forecast and the file is what `npmatch forecast` wrote."""
    try:
        return None if run.forecast is None else forecast.section(run.forecast)
    except (KeyError, TypeError, ValueError):
        return None


def facts(page: Comparison) -> str:
    """The line below the title: sizes and training time."""
    parts = of_run.facts(page.run) if page.run else _comparison_facts(page)
    return " · ".join(parts)


def _comparison_facts(page: Comparison) -> Iterator[str]:
    seeds = {seed for m in page.methods for seed in [*m.problems, *(run.seed for run in m.outcomes)]}
    steps = {method.iterations for method in page.methods} - {None}
    parts = [(len(page.methods), "value" if page.swept else "method"), (len(seeds), "seed")]
    parts += [(n, "step") for n in steps if n is not None and len(steps) == 1]
    yield from (f"{count(n)} {word}{'s' if n != 1 else ''}" for n, word in parts)


def headline(page: Comparison) -> Section:
    """The headline numbers."""
    tiles = of_run.headline(page.run) if page.run else _comparison_tiles(page)
    probe = page.run.probe() if page.run else None
    warning = probe.warning(page.run.scores.error) if page.run and probe and len(page.run.y) else None
    return Section("headline.html", {"numbers": list(tiles), "warning": warning})


def _comparison_tiles(page: Comparison) -> Iterator[Tile]:
    rows = page.rows()
    for key, name in (("error", "Lowest error"), ("ece", "Lowest ECE"), ("uce", "Lowest UCE")):
        if (i := lowest(rows, key)) is not None:
            yield Tile(percent(rows[i][key], 2), name, rows[i]["method"])
    failed = sum(len(method.problems) for method in page.methods)
    finished = sum(len(method.outcomes) for method in page.methods)
    yield Tile(count(finished), "Runs", f"{count(failed)} failed" if failed else "all of them finished")
    yield Tile(duration(sum(sum(m.values("seconds")) for m in page.methods)), "Training", "all runs together")


def sweep(page: Comparison) -> Section | None:
    """Error and UCE against the swept value."""
    if page.swept is None:
        return None
    drawings = [
        charts.sweep_panel(page.methods, page.swept, key, label)
        for key, label in (("error", "test error, %"), ("uce", "UCE, %"))
    ]
    return Section("sweep.html", {"key": page.swept, "drawings": drawings})


def methods(page: Comparison) -> Section | None:
    """The methods as a table and their errors as a figure; None on the page of a single run without other methods."""
    if page.run is not None and len(page.methods) == 1:
        return None
    rows = page.rows()
    shown = columns(rows)
    return Section(
        "methods.html",
        {
            "title": "All values" if page.swept else "All methods",
            "headings": [page.heading, *(column.heading for column in shown)],
            "lines": lines(rows, shown),
            "drawing": Markup() if page.swept else charts.error_rows(page.methods),
        },
    )


def curves_of_methods(page: Comparison) -> Section | None:
    """Learning curves: test error against the step."""
    shown = [method for method in page.methods if len(method.curve()[0][0])]
    if not shown:
        return None
    names = {method.name for method in shown}
    each = [Panel(m.name, percent(m.mean("error")), curves.curve_panel(m, shown)) for m in shown]
    marks = {"with_ours": OURS in names, "with_baseline": BASELINE in names}
    return Section("curves.html", {"drawing": curves.curves_together(shown), "each": each, **marks})


def classes(page: Comparison) -> Section | None:
    """Whether the uncertain classes are the inaccurate ones."""
    if page.run is not None:
        return of_run.classes(page.run)
    rows = {method.name: method.classes() for method in page.methods}
    each = [
        Panel(name, f"ρ = {signed(rank_correlation(found))}", charts.class_scatter(found, name))
        for name, found in rows.items()
        if any(row.n for row in found)
    ]
    return Section("classes_of_methods.html", {"each": each}) if each else None


def calibration(page: Comparison) -> Section | None:
    """Reliability diagrams of confidence and uncertainty."""
    if page.run is not None:
        return of_run.calibration(page.run)
    panels = {
        "confidence": _reliability_panels(page.methods, "confidence", "accuracy", "ece"),
        "uncertainty": _reliability_panels(page.methods, "uncertainty", "error", "uce"),
    }
    return Section("calibration_of_methods.html", panels) if any(panels.values()) else None


def _reliability_panels(shown: list[Method], score: str, outcome: str, key: str) -> list[Panel]:
    """A reliability diagram for every method, over the test images of all its seeds."""
    return [
        Panel(
            method.name,
            f"{key.upper()} {percent(method.mean(key))}",
            charts.reliability_panel(bins, score, outcome, method.name),
        )
        for method in shown
        if (bins := method.reliability(score)) is not None
    ]


def decided(page: Comparison) -> Section | None:
    """Temperature, calibration and abstention of the methods whose runs held out labels."""
    table = []
    for method in page.methods:
        if any(run.decided for run in method.outcomes):
            temperature, *shares = [method.mean_decided(key) for key in DECIDED]
            table.append(Line(method.name, [decimal(temperature, 2), *(percent(share) for share in shares)]))
    data = {"heading": page.heading, "target": percent(100 * TARGET, 0), "lines": table}
    return Section("decided.html", data) if table else None


def runs(page: Comparison) -> Section:
    """The table of all runs, seed by seed."""
    rows: list[dict[str, object]] = []
    for method in page.methods:
        rows += [{"name": f"{method.name}, seed {run.seed}", **run.numbers} for run in method.outcomes]
        rows += [
            {"name": f"{method.name}, seed {seed}", "note": f"failed: {why}"} for seed, why in method.problems.items()
        ]
    shown = [column for column in columns(rows) if column.key in NUMBERS]
    table = [
        Line(str(row["name"]), [column.write(row) for column in shown], note=str(row.get("note", ""))) for row in rows
    ]
    return Section("runs.html", {"headings": ["Run", *(column.heading for column in shown)], "lines": table})


def configuration(page: Comparison) -> Section:
    """The settings in which the methods differ, and those that all runs share, by their configuration keys."""
    apart = [Line(key, [str(value) for value in values]) for key, values in page.apart.items()]
    headings = ["setting", *(method.name for method in page.methods)]
    summary = "Every setting of this run" if page.run else "What all runs have in common"
    data = {"apart": apart, "headings": headings, "summary": summary, "settings": list(page.settings.items())}
    return Section("configuration.html", data)
