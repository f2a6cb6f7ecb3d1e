"""Baselines in a comparison: rows beside those of algorithms, on the same splits, and only with pretrained weights."""

import csv
import json
from types import SimpleNamespace

import pytest

from few_photos import WORDS, save_photos, save_weights
from npmatch.algorithms import ALGORITHMS
from npmatch.baselines import BASELINES
from npmatch.cli import main
from npmatch.compare import Plan, Variant, baseline, compare, engine
from npmatch.metrics import scores
from npmatch.report import Comparison, Method, Outcome
from npmatch.report.tables import columns
from npmatch.runs.evaluate import read_record
from npmatch.runs.folder import RunFolder


def do_here(jobs, *_):
    """Does the jobs in this process, which has imported everything; returns those that failed."""
    codes = {}
    for job in jobs:
        module, *arguments = job.command[2:]
        codes[job] = main(arguments) if module == "npmatch" else baseline.main(*arguments)
    return {job: f"exit code {code}" for job, code in codes.items() if code}


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> SimpleNamespace:
    """A finished comparison of all baselines and supervised training, with two seeds."""
    folder = tmp_path_factory.mktemp("baselines")
    save_photos(folder / "photos", classes="abc", labels=4, unlabeled=9, test=6)
    algorithm = {key: value for key, value in WORDS.items() if not key.startswith("algorithm.")}
    overrides = {**algorithm, **save_weights(folder / "cnn.pt")}
    settings = {"data": folder / "photos", "seeds": 2, "device": "cpu", "overrides": overrides, "quiet": True}
    names = [*BASELINES, "supervised"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "run_jobs", do_here)
        rows = compare(algorithms=names, out=folder / "out", **settings)
    return SimpleNamespace(out=folder / "out", rows=rows, settings=settings, names=names)


def test_rows_hold_the_scores_of_the_predictions_and_the_time(real):
    assert [row["method"] for row in real.rows] == real.names
    for row in real.rows[:-1]:
        runs = [RunFolder(real.out / row["method"] / f"seed-{seed}") for seed in (0, 1)]
        found = [scores(*run.read_test_predictions()[:2]).asdict() for run in runs]
        for key in ("error", "ece", "uce", "nll"):
            assert row[key] == pytest.approx(sum(each[key] for each in found) / 2, abs=1e-4)
        assert (row["seeds"], row["failed"], row["iterations"], row["trusted"]) == (2, 0, None, None)
        assert row["seconds"] > 0
        assert row["error"] < 50  # three shades of grey, of which chance would miss two thirds
    with open(real.out / "runs.csv", newline="", encoding="utf-8") as file:
        assert [(run["method"], run["seed"]) for run in csv.DictReader(file)] == [
            (name, str(seed)) for name in real.names for seed in (0, 1)
        ]


def test_the_probes_row_is_the_error_beside_the_runs_own(real):
    for seed in (0, 1):
        rows = [RunFolder(real.out / name / f"seed-{seed}").final_scores() for name in ("probe", "supervised")]
        assert rows[0]["error"] == rows[1]["probe_error"]


def test_splits_are_equal_and_a_baseline_is_neither_a_run_nor_a_curve(real):
    splits = [json.loads((real.out / name / "seed-0" / "split.json").read_text()) for name in real.names]
    assert all(split == splits[0] for split in splits)
    probe = RunFolder(real.out / "probe" / "seed-0")
    assert not probe.exists()
    assert not probe.has_model()
    assert len(read_record(probe).outcome(0).curve[0]) == 0
    page = (real.out / "report.html").read_text(encoding="utf-8")
    assert page.count("spreading, seed 1") == 1
    assert f"{WORDS['training.iterations']} steps" in page


def test_a_finished_baseline_is_kept_and_a_lost_one_is_done_again(real, monkeypatch):
    seen = []
    monkeypatch.setattr(engine, "run_jobs", lambda jobs, *_: seen.extend(jobs) or do_here(jobs))
    assert compare(algorithms=real.names, out=real.out, **real.settings) == real.rows
    assert seen == []
    (real.out / "probe" / "seed-1" / "metrics.jsonl").unlink()
    again = compare(algorithms=real.names, out=real.out, **real.settings)
    assert [(job.name, job.seed) for job in seen] == [("probe", 1)]
    assert again[0]["error"] == real.rows[0]["error"]


def test_a_baseline_is_done_by_a_child_process_whose_error_is_one_line(real, tmp_path, monkeypatch, capsys):
    plan = Plan(None, (Variant("neighbours"),), (0,), {"data.root": str(tmp_path / "gone")})
    job = engine.make_job(plan, tmp_path, plan.variants[0], 0, "cpu")
    assert job.command[1:3] == ("-m", "npmatch.compare.baseline")
    assert baseline.main(job.command[3]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (real.out / "neighbours" / "seed-0" / "metrics.jsonl").unlink()
    rows = compare(algorithms=real.names, out=real.out, **real.settings)
    assert rows[1]["error"] == real.rows[1]["error"]


def named_jobs(monkeypatch, **settings) -> list[str]:
    """The names of the jobs that a comparison would start."""
    seen: list[str] = []

    def run_jobs(jobs, *_):
        seen.extend(job.name for job in jobs)
        return {job: "not now" for job in jobs}

    monkeypatch.setattr(engine, "run_jobs", run_jobs)
    compare(seeds=1, quiet=True, **settings)
    return seen


def test_all_has_baselines_where_runs_start_from_pretrained_weights(real, tmp_path, monkeypatch):
    assert named_jobs(monkeypatch, recipe="digits-40", out=tmp_path / "digits") == [*ALGORITHMS]
    settings = {key: real.settings[key] for key in ("data", "overrides")}
    expected = [*BASELINES, *ALGORITHMS, "npmatch[divergence=kl]"]
    assert named_jobs(monkeypatch, out=tmp_path / "a", algorithms="all,npmatch[divergence=kl]", **settings) == expected
    assert named_jobs(monkeypatch, out=tmp_path / "b", algorithms="npmatch", **settings) == ["npmatch"]


def test_settings_of_algorithms_and_budgets_do_not_concern_a_baseline(real, tmp_path, monkeypatch):
    measured = []

    def measure_variants(plan, out, variants, *_):
        measured.extend(variant.label for variant in variants)
        return [(variant, 40) for variant in variants]

    monkeypatch.setattr(engine, "measure_variants", measure_variants)
    overrides = {**real.settings["overrides"], "algorithm.samples": 3}
    del overrides["training.iterations"]
    settings = {"data": real.settings["data"], "overrides": overrides, "budget_minutes": 1}
    assert named_jobs(monkeypatch, out=tmp_path / "out", algorithms="probe,npmatch", **settings) == ["probe", "npmatch"]
    assert measured == ["npmatch"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits-40", "--algorithms", "npmatch,probe"], "probe: needs pretrained weights, and these runs start from"),
        (["digits-40", "--algorithms", "probe"], "set backbone.pretrained=true or backbone.weights=FILE"),
        (["digits-40", "--algorithms", "prob"], "unknown algorithm 'prob'; did you mean 'probe'?"),
        (["digits-40", "--algorithms", "probe[k=3]"], "probe[k=3]: unknown key 'algorithm.k'"),
    ],
)
def test_what_a_baseline_cannot_do_is_one_line(words, message, tmp_path, capsys):
    assert main(["compare", *words, "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_methods_that_do_not_beat_the_probe_are_named():
    errors = {"probe": 28.0, "neighbours": 32.0, "supervised": 30.0, "npmatch": 29.0, "flexmatch": 8.0}
    methods = [Method(name, [Outcome(0, {"error": error})]) for name, error in errors.items()]
    notes = {row["method"]: row["note"] for row in Comparison("", methods).rows()}
    assert notes["supervised"] == notes["npmatch"] == "did not beat probe"
    assert not any(notes[name] for name in ("probe", "neighbours", "flexmatch"))


@pytest.mark.parametrize(("steps", "shown"), [((100, 100), False), ((100, 200), True)])
def test_steps_are_a_column_only_where_trained_methods_differ_in_them(steps, shown):
    probe = Method("probe", [Outcome(0, {"error": 28.0})])
    rows = Comparison("", [probe, *(Method(f"{i}", [], iterations=n) for i, n in enumerate(steps))]).rows()
    assert ("iterations" in [column.key for column in columns(rows)]) is shown
