"""The demo's comparison, on runs that are small."""

from pathlib import Path

import benchmarks.demo
from npmatch.data import load_dataset
from tiny import train_tiny

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_demo_prints_a_table_and_writes_a_report(tmp_path, monkeypatch, capsys):
    def small_fit(recipe, *, out, seed, resume, overrides, algorithm="npmatch", quiet=False):
        return train_tiny(out, seed=seed, algorithm=algorithm, resume=resume)

    monkeypatch.setattr(benchmarks.demo, "fit", small_fit)
    for _ in range(2):  # the second time everything is there already
        report = benchmarks.demo.main(tmp_path)
        printed = capsys.readouterr().out
        assert "LabelSpreading" in printed
        assert "same network, 40 labels alone" in printed
        assert "LabelSpreading" in report.read_text()
        *_, path, command, expectation = printed.splitlines()
        assert path == f"report: {report.resolve()}"
        assert command.endswith(f"npmatch {benchmarks.demo.OWN_PHOTOS}")
        assert expectation == benchmarks.demo.EXPECTATION
    assert f"npmatch {benchmarks.demo.OWN_PHOTOS} " in README


def test_label_spreading_is_as_good_as_scikit_learn_makes_it(tiny_run):
    row = benchmarks.demo.label_spreading(load_dataset("digits"), tiny_run.folder / "split.json")
    assert 3 < row["error"] < 20
