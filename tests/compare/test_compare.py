"""Comparisons of many methods over many seeds: some with real child processes, others on made-up runs."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from many_runs import make_run, make_runs
from npmatch.cli import main
from npmatch.compare import (
    Plan,
    Variant,
    carry_out,
    compare,
    engine,
    parse_variant,
    parse_variants,
    sweep,
)
from npmatch.compare import (
    pace as compare_pace,
)
from npmatch.compare.jobs import last_step, problem_of
from npmatch.compare.results import run_folder
from npmatch.config.resolve import resolve_config
from npmatch.distributed.jobs import Local
from npmatch.errors import NPMatchError
from npmatch.files import locked
from npmatch.runs.folder import RunFolder
from npmatch.training import pace

NPMATCH = "npmatch[bank=512;confidence=0.12;max_entropy=2.3;samples=3]"
SMALL = {
    "training.batch": 8,
    "training.unlabeled_ratio": 2,
    "training.log_every": 5,
    "training.checkpoint_every": 7,
    "backbone.width": 4,
}
WORDS = ["digits-40", *(f"{key}={value}" for key, value in SMALL.items())]
BUDGET = ["--budget-iterations", "12", "--device", "cpu"]


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def train_here(jobs, *_):
    """Trains the jobs in this process, which has imported everything; returns those that failed."""
    codes = {job: main(list(job.command[3:])) for job in jobs}
    return {job: f"exit code {code}" for job, code in codes.items() if code}


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> SimpleNamespace:
    """A finished comparison of two methods with two seeds."""
    out = tmp_path_factory.mktemp("compare") / "out"
    settings = {"budget_iterations": 12, "seeds": 2, "device": "cpu", "overrides": SMALL}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "run_jobs", train_here)
        rows = compare("digits-40", algorithms=["supervised", NPMATCH], out=out, quiet=True, **settings)
    return SimpleNamespace(out=out, rows=rows, settings=settings, names=["supervised", NPMATCH])


def folders(out: Path, name: str) -> list[Path]:
    return sorted((out / parse_variant(name).slug).glob("seed-?"))


def test_table_is_what_numpy_makes_of_the_logs(real):
    for row, name in zip(read_csv(real.out / "table.csv"), real.names, strict=True):
        logs = [RunFolder(folder).records() for folder in folders(real.out, name)]
        assert row["method"] == name
        assert (row["seeds"], row["failed"]) == ("2", "0")
        for key in ("error", "nll", "ece", "uce"):
            values = [log[-1][key] for log in logs]
            assert float(row[key]) == pytest.approx(np.mean(values), rel=1e-12)
            assert float(row[f"{key}_std"]) == pytest.approx(np.std(values, ddof=1), rel=1e-9, abs=1e-12)
        assert float(row["seconds"]) == pytest.approx(np.mean([log[-1]["seconds"] for log in logs]))
        last = [[record for record in log if record["kind"] == "train"][-1] for log in logs]
        if name == "supervised":
            assert row["trusted"] == row["pseudo_accuracy"] == ""
        else:
            assert float(row["trusted"]) == pytest.approx(np.mean([record["trusted"] for record in last]))
            right = np.mean([record["pseudo_accuracy"] for record in last])
            assert float(row["pseudo_accuracy"]) == pytest.approx(right)


def test_rows_and_files_agree(real):
    table = read_csv(real.out / "table.csv")
    as_text = [{key: "" if value is None else str(value) for key, value in row.items()} for row in real.rows]
    assert table == as_text
    runs = read_csv(real.out / "runs.csv")
    assert [(run["method"], run["seed"]) for run in runs] == [(name, seed) for name in real.names for seed in "01"]
    text = (real.out / "table.txt").read_text(encoding="utf-8")
    assert f"{real.rows[1]['error']:.2f} ± {real.rows[1]['error_std']:.2f}" in text
    assert "seed 0 failed" not in text


def test_equal_seeds_have_equal_splits_and_others_have_not(real):
    splits = [[json.loads((f / "split.json").read_text())["labeled"] for f in folders(real.out, n)] for n in real.names]
    assert splits[0] == splits[1]
    assert splits[0][0] != splits[0][1]


def test_a_budget_is_every_runs_own_full_schedule_with_points_along_it(real):
    for name in real.names:
        records = RunFolder(folders(real.out, name)[0]).records()
        assert [r["step"] for r in records if r["kind"] == "eval"] == list(range(1, 12))
        assert records[-1]["kind"] == "final"
        assert records[-1]["step"] == 12


def no_jobs(jobs, *_):
    raise AssertionError(f"trained again: {[job.title for job in jobs]}")


def test_a_finished_comparison_is_written_again_without_training(real, tmp_path, monkeypatch):
    out = shutil.copytree(real.out, tmp_path / "copy")
    before = {name: (out / name).read_bytes() for name in ("table.txt", "table.csv", "runs.csv", "report.html")}
    for name in before:
        (out / name).unlink()
    monkeypatch.setattr(engine, "run_jobs", no_jobs)
    rows = compare("digits-40", algorithms=real.names, out=out, **real.settings)
    assert rows == real.rows
    assert {name: (out / name).read_bytes() for name in before} == before


def test_a_lost_run_is_trained_again_by_a_child_process_and_gives_the_same_numbers(real, tmp_path):
    out = shutil.copytree(real.out, tmp_path / "copy")
    shutil.rmtree(folders(out, NPMATCH)[1])
    kept = folders(out, "supervised")[0] / "metrics.jsonl"
    written = kept.stat().st_mtime_ns
    one_thread_each = os.cpu_count()  # jobs share the cores; the number of threads changes the last bits
    rows = compare("digits-40", algorithms=real.names, out=out, quiet=True, jobs=one_thread_each, **real.settings)
    numbers = ("error", "error_std", "nll", "ece", "uce", "trusted")
    assert [[row[key] for key in numbers] for row in rows] == [[row[key] for key in numbers] for row in real.rows]
    assert kept.stat().st_mtime_ns == written


BROKEN = """
from npmatch import Algorithm

class Broken(Algorithm):
    def loss(self, batch, progress):
        raise RuntimeError("this one\\nnever works")
"""


def test_a_failing_run_is_named_and_the_others_finish(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_method.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    chosen = "broken_method:Broken,supervised"
    words = ["compare", *WORDS, "--algorithms", chosen, "--seeds", "1", "--jobs", "2", "--out", "out", *BUDGET]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert "broken_method:Broken, seed 0: failed: RuntimeError: this one (" in err
    assert "broken_method:Broken: failed: RuntimeError: this one" in out
    broken, supervised = read_csv("out/table.csv")
    assert broken["error"] == ""
    assert broken["note"] == "failed: RuntimeError: this one"
    assert float(supervised["error"]) > 0
    line = next(line for line in out.splitlines() if line.strip().startswith("broken_method"))
    assert line.split()[1:] == ["–"] * 5


def test_ctrl_c_saves_the_runs_and_the_same_command_goes_on(tmp_path, capsys):
    run = tmp_path / "out" / "supervised" / "seed-0"
    words = ["compare", *WORDS, "--algorithms", "supervised", "--seeds", "1", "--out", str(tmp_path / "out")]
    words += ["--budget-iterations", "400", "--device", "cpu", "--jobs", "9"]
    process = subprocess.Popen([sys.executable, "-m", "npmatch", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while last_step(run) == 0:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "run the same command again" in err
    stopped_at = max(int(path.stem.partition("-")[2]) for path in (run / "checkpoints").glob("*.safetensors"))
    assert 0 < stopped_at < 400
    assert "--resume" in run.with_name("seed-0.log").read_text()  # it was stopped by a signal that it handles
    assert main(words) == 0
    assert f"started again at step {stopped_at // 5 * 5}" in capsys.readouterr().err
    assert [r["step"] for r in RunFolder(run).records() if r["kind"] == "train"] == list(range(5, 401, 5))


def test_two_comparisons_never_work_in_one_folder(tmp_path, capsys):
    with locked(tmp_path, inherited=True):
        assert main(["compare", "digits-40", "--algorithms", "supervised", "--out", str(tmp_path)]) == 2
    assert "another process is at work in this folder" in capsys.readouterr().err
    with locked(tmp_path, inherited=True):
        pass


# ---- on made-up runs


ERRORS = {"supervised": 30.0, "npmatch": 6.0, "npmatch[divergence=kl]": 36.0}
PLAN = Plan("cifar10-40", tuple(parse_variants(",".join(ERRORS))), (0, 1), {"training.batch": "32"})
COMMAND = ["compare", "cifar10-40", "training.batch=32", "--algorithms", "npmatch", "--seeds", "2"]


@pytest.fixture
def made_up(tmp_path) -> Path:
    make_runs(PLAN, tmp_path / "out", ERRORS)
    return tmp_path / "out"


def test_what_the_papers_figures_and_the_baseline_say_stands_in_the_table(made_up, capsys):
    assert main([*COMMAND, "--out", str(made_up), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = {row["method"]: row for row in answer["rows"]}
    assert list(rows) == list(ERRORS)  # all that the folder holds, though one was named
    assert rows["npmatch"]["paper_error"] == 4.91
    assert rows["npmatch[divergence=kl]"]["paper_error"] == 5.32
    assert rows["supervised"]["paper_error"] is None
    assert rows["npmatch[divergence=kl]"]["note"] == "did not beat supervised"
    assert rows["npmatch"]["note"] == rows["supervised"]["note"] == ""
    assert main([*COMMAND, "--out", str(made_up)]) == 0
    printed = capsys.readouterr().out
    assert "4.91 ± 0.04" in printed
    assert "npmatch[divergence=kl]: did not beat supervised" in printed


@pytest.mark.parametrize(
    ("variant", "settings", "error"),
    [
        ("npmatch", {}, 4.91),
        ("npmatch[divergence=js]", {}, 4.91),
        ("npmatch[divergence=js_dual]", {}, 4.93),
        ("npmatch", {"algorithm.divergence": "kl"}, 5.32),
        ("npmatch[preset=reference]", {}, 4.91),
        ("npmatch[preset=reference;divergence=kl]", {}, 5.32),
        ("npmatch[alpha=0.5]", {}, None),
        ("npmatch[divergence=kl;alpha=0.5]", {}, None),
        ("npmatch", {"data.labels": "80"}, None),
        ("npmatch", {"backbone.name": "cnn"}, None),
        ("npmatch", {"training.iterations": "100"}, 4.91),
    ],
)
def test_a_published_figure_stands_beside_its_own_task_and_reading_alone(variant, settings, error):
    plan = Plan("cifar10-40", (parse_variant(variant),), (0,), settings)
    assert (plan.paper_error(plan.variants[0]) or (None,))[0] == error


def recorded_jobs(monkeypatch) -> list:
    seen = []

    def run_jobs(jobs, *_):
        seen.extend(jobs)
        return {job: "not now" for job in jobs}

    monkeypatch.setattr(engine, "run_jobs", run_jobs)
    return seen


def test_more_seeds_and_more_algorithms_may_be_added(made_up, monkeypatch):
    seen = recorded_jobs(monkeypatch)
    words = ["compare", "cifar10-40", "training.batch=32", "--algorithms", "npmatch[alpha=0.5]", "--seeds", "3"]
    assert main([*words, "--out", str(made_up)]) == 1
    new = [(name, 2) for name in ERRORS] + [("npmatch[alpha=0.5]", seed) for seed in (0, 1, 2)]
    assert sorted((job.name, job.seed) for job in seen) == sorted(new)
    assert [job.seed for job in seen] == sorted(job.seed for job in seen)
    content = json.loads((made_up / "compare.json").read_text())
    assert content["seeds"] == [0, 1, 2]
    assert [v["settings"] for v in content["variants"]][-1] == {"algorithm.alpha": "0.5"}
    rows = {row["method"]: row for row in read_csv(made_up / "table.csv")}
    assert rows["npmatch"]["note"] == "seed 2 failed: not now"
    assert rows["npmatch[alpha=0.5]"]["note"] == "failed: not now"
    assert len(read_csv(made_up / "runs.csv")) == 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training.batch=64"], "training.batch: 32 → 64"),
        (["training.batch=32", "training.ema=0.9"], "training.ema: None → 0.9"),
        (["training.batch=32", "--budget-iterations", "9"], "budget-iterations: None → 9"),
        (["training.batch=32", "--data", "elsewhere"], "data.root: None → elsewhere"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(made_up, words, message, capsys):
    before = (made_up / "compare.json").read_bytes()
    assert main(["compare", "cifar10-40", *words, "--algorithms", "npmatch", "--out", str(made_up)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert str(made_up) in err
    assert err.count("\n") == 1
    assert (made_up / "compare.json").read_bytes() == before


def test_runs_that_did_not_learn_from_the_same_images_are_not_compared(made_up):
    path = run_folder(made_up, PLAN.variants[1], 0).split
    path.write_text(path.read_text().replace("[0]", "[7]"))
    with pytest.raises(NPMatchError, match="did not learn from the same images"):
        carry_out(PLAN, made_up)


def test_a_child_gets_its_share_of_the_cores_and_the_whole_configuration(tmp_path, monkeypatch):
    seen = recorded_jobs(monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)))
    assert Local(4).environment["OMP_NUM_THREADS"] == "2"
    assert Local(4).one_at_a_time().environment["OMP_NUM_THREADS"] == "2"
    assert Local(20).environment["OMP_NUM_THREADS"] == "1"
    compare("digits-40", algorithms=NPMATCH, seeds=1, first_seed=5, out=tmp_path / "out", budget_iterations=200)
    (job,) = seen
    assert job.command[:5] == (sys.executable, "-m", "npmatch", "train", "digits-40")
    words = set(job.command[5:])
    assert {"training.iterations=200", "training.eval_every=20", "algorithm.samples=3", "--resume", "--quiet"} <= words
    assert job.command[job.command.index("--seed") + 1] == "5"
    assert job.iterations == 200
    given = {"training.eval_every": 7}
    compare("digits-40", algorithms="supervised", seeds=1, out=tmp_path / "2", budget_iterations=50, overrides=given)
    assert "training.eval_every=7" in seen[-1].command


def test_a_budget_in_minutes_is_measured_once_and_remembered(tmp_path, monkeypatch):
    seen, measured = recorded_jobs(monkeypatch), []

    def measure_variants(plan, out, variants, engine, device):
        for variant in variants:
            measured.append(variant.label)
            yield variant, 40 if variant.algorithm == "supervised" else "no memory"

    monkeypatch.setattr(engine, "measure_variants", measure_variants)
    settings = {"algorithms": "supervised,npmatch", "out": tmp_path / "out", "budget_minutes": 0.5, "quiet": True}
    for _ in range(2):
        rows = compare("digits-40", seeds=2, **settings)
    assert measured == ["supervised", "npmatch", "npmatch"]
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["calibrated"] == {"supervised": 40}
    assert {job.name for job in seen} == {"supervised"}
    assert {"training.iterations=40", "training.eval_every=4"} <= set(seen[0].command)
    assert rows[1]["note"] == "failed: no memory"


def test_iterations_for_divides_the_minutes_by_the_time_of_a_step(monkeypatch):
    clock = SimpleNamespace(now=0.0, step=0)

    def take_step(raw):
        clock.step = trainer.step = trainer.step + 1
        clock.now += 5.0 if trainer.step <= pace.WARM_UP else 0.25

    trainer = SimpleNamespace(
        step=0,
        take_step=take_step,
        stream=SimpleNamespace(batches=lambda start, stop: range(start, stop)),
        trial=lambda steps: nullcontext(),
    )
    monkeypatch.setattr(compare_pace, "build_to_fit", lambda config, *args: (config, trainer, None))
    monkeypatch.setattr(pace.time, "monotonic", lambda: clock.now)
    assert compare_pace.iterations_for(resolve_config("digits-40"), 2, "cpu") == 480
    assert clock.step < pace.WARM_UP + pace.MAX_TIMED_STEPS  # ten seconds of timed steps were enough


def test_a_step_is_measured_in_a_process_of_its_own(tmp_path):
    plan = Plan("digits-40", (Variant("supervised"),), (0,), {k: str(v) for k, v in SMALL.items()}, budget_minutes=1)
    ((variant, steps),) = engine.measure_variants(plan, tmp_path, plan.variants, Local(2), "cpu")
    assert variant == plan.variants[0]
    assert isinstance(steps, int)
    assert 60 < steps < 600_000  # between a second and a tenth of a millisecond per step


# ---- what a user types


def test_sweep_compares_the_values_of_one_key(tmp_path, capsys):
    key, errors = "algorithm.samples", {"1": 9.0, "10": 5.0, "100": 6.0}
    plan = Plan("digits-40", tuple(Variant("npmatch", ((key, value),)) for value in errors), (0, 1), swept=key)
    make_runs(plan, tmp_path / "out", errors)
    words = ["sweep", "digits-40", f"{key}=1,10,100", "--seeds", "2", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "algorithm.samples" in capsys.readouterr().out
    rows = read_csv(tmp_path / "out" / "table.csv")
    assert [row["method"] for row in rows] == ["1", "10", "100"]
    for row in rows:
        runs = tmp_path / "out" / f"npmatch-samples-{row['method']}"
        logs = [RunFolder(runs / f"seed-{s}").records() for s in (0, 1)]
        assert float(row["error"]) == pytest.approx(np.mean([log[-1]["error"] for log in logs]))
    assert main([*words[:2], "algorithm.bank=1,2", *words[3:]]) == 2
    assert "swept: algorithm.samples → algorithm.bank" in capsys.readouterr().err
    assert main([*words, "--algorithm", "npmatch[divergence=kl]"]) == 2
    assert "algorithm: npmatch → npmatch[divergence=kl]" in capsys.readouterr().err


def test_python_may_sweep_values_that_are_not_text(tmp_path, monkeypatch):
    seen = recorded_jobs(monkeypatch)
    sweep("digits-40", key="algorithm.alpha", values=[None, 0.5], seeds=1, out=tmp_path / "out")
    assert [job.name for job in seen] == ["none", "0.5"]
    assert "algorithm.alpha=none" in seen[0].command


def test_different_labels_are_meant_to_have_different_splits(tmp_path, monkeypatch):
    key = "data.labels"
    plan = Plan("digits-40", tuple(Variant("npmatch", ((key, n),)) for n in ("20", "40")), (0,), swept=key)
    make_runs(plan, tmp_path, {"20": 9.0, "40": 5.0})
    path = run_folder(tmp_path, plan.variants[1], 0).split
    path.write_text(path.read_text().replace("[0]", "[0, 7]"))
    assert len(carry_out(plan, tmp_path).rows()) == 2


def test_why_a_process_failed_is_one_line(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "warning: x\nTraceback (most recent call last):\n  File\ntorch.OutOfMemoryError: too much\n  more\nhint\n"
    )
    assert problem_of(0, log) is None
    assert problem_of(1, log) == "torch.OutOfMemoryError: too much"
    log.write_text("npmatch: data.labels=3: too few\n")
    assert problem_of(2, log) == "data.labels=3: too few"
    log.write_text("")
    assert problem_of(3, log) == "ended with exit code 3"
    assert problem_of(-signal.SIGKILL, log) == "killed by SIGKILL (perhaps out of memory)"


def test_progress_reads_the_last_whole_line_of_a_long_log(tmp_path):
    assert last_step(tmp_path) == 0
    make_run(tmp_path / "run", 0, 5.0)
    assert last_step(tmp_path / "run") == 20_000
    with open(tmp_path / "run" / "metrics.jsonl", "a") as log:
        log.writelines(json.dumps({"kind": "train", "step": step, "pad": "x" * 300}) + "\n" for step in range(500))
        log.write('{"kind": "train", "st')
    assert last_step(tmp_path / "run") == 499
