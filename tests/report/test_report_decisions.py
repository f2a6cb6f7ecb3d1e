"""The sections that rest on held-out labels, and the verb that writes reports."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from made_up_run import Page, make_record, page_of

from npmatch.cli import main
from npmatch.decide import Calibration
from npmatch.metrics import scores
from npmatch.report.page import html_page
from npmatch.types import Prediction
from tiny import train_tiny


def calibration(n: int = 200, seed: int = 7) -> Calibration:
    """Of an overconfident model of ten classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (n,), generator=g)
    logits = 4 * torch.randn(n, 10, generator=g)
    logits[torch.arange(n), y] += 12
    probs = logits.softmax(-1)
    return Calibration.fit(Prediction(probs, torch.special.entr(probs).sum(-1)), y, None, "data.validation")


def test_before_and_after_are_those_of_the_test_images():
    record = make_record(calibration=calibration())
    page = Page(html_page(page_of(record)))
    assert {"calibrated", "abstention"} <= set(page.sections)
    words = page.text["calibrated"]
    before, after = scores(record.prediction, record.y), scores(record.calibration.apply(record.prediction), record.y)
    for found, (_, *cells) in zip((before, after), page.rows["calibrated"][1:], strict=True):
        shown = [float(text.removesuffix(" %")) for (text,) in cells]
        assert shown[:2] == pytest.approx([found.ece, found.uce], abs=0.051)
        assert shown[2:] == pytest.approx([found.nll, found.brier], abs=0.00051)
    assert f"At temperature {record.calibration.temperature:.2f}" in words


def test_thresholds_are_shown_as_they_turn_out_and_missing_labels_are_counted():
    record = make_record(calibration=calibration())
    rows = {row[0][0]: [text for (text,) in row[1:]] for row in Page(html_page(page_of(record))).rows["abstention"]}
    threshold, held_out, kept, error = rows["at most 10 %"]
    below = record.prediction.entropy <= float(threshold)
    wrong = record.prediction.label[below] != record.y[below]
    assert float(kept.removesuffix(" %")) == pytest.approx(100 * below.float().mean().item(), abs=0.6)
    assert float(error.removesuffix(" %")) == pytest.approx(100 * wrong.float().mean().item(), abs=0.6)
    chosen = record.calibration.abstention(0.1)
    assert [int(word) for word in re.findall(r"\d+", held_out)] == [chosen.kept, 200, chosen.errors]
    assert rows["at most 1 %"][0] == "30 more labels needed", "230 for 1 %"
    none = Page(html_page(page_of(make_record())))
    assert not {"calibrated", "abstention"} & set(none.sections)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two seeds of one method and one of another, each with held-out labels."""
    out = tmp_path_factory.mktemp("many")
    changes = {"data__validation": 60, "training__iterations": 8}
    for name, seed, algorithm in (("a", 0, "supervised"), ("b", 1, "supervised"), ("c", 0, "fixmatch")):
        train_tiny(out / name, seed=seed, algorithm=algorithm, **changes)
    return out


def test_report_of_one_run_and_of_many(runs, tmp_path, capsys):
    (runs / "a" / "report.html").unlink()
    assert main(["report", str(runs / "a")]) == 0
    page = Page((runs / "a" / "report.html").read_text())
    assert "calibrated" in page.sections
    elsewhere = tmp_path / "of-one.html"
    assert main(["report", str(runs / "a"), "-o", str(elsewhere)]) == 0
    assert elsewhere.read_text() == (runs / "a" / "report.html").read_text()
    capsys.readouterr()
    many = tmp_path / "many.html"
    assert main(["report", str(runs), "-o", str(many), "--json"]) == 0
    assert [Path(run).name for run in json.loads(capsys.readouterr().out)["runs"]] == ["a", "b", "c"]
    html = many.read_text()
    page = Page(html)
    assert {"methods", "decided"} <= set(page.sections)
    assert {"supervised", "fixmatch"} <= set(page.text["methods"])
    assert page.text["decided"].count("supervised") == 1, "seeds of one method are one row"
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", html)


def test_runs_that_differ_in_many_settings_are_called_after_their_folders(tmp_path):
    train_tiny(tmp_path / "old" / "photos", training__iterations=8, algorithm="supervised")
    changes = {"learning_rate": 0.02, "momentum": 0.8, "weight_decay": 0.002, "batch": 16}
    settings = {f"training__{key}": value for key, value in changes.items()}
    train_tiny(tmp_path / "new" / "photos", training__iterations=9, algorithm="supervised", **settings)
    folders = [str(tmp_path / place / "photos") for place in ("old", "new")]
    assert main(["report", *folders, "-o", str(tmp_path / "many.html")]) == 0
    page = Page((tmp_path / "many.html").read_text())
    assert {"old/photos", "new/photos"} <= set(page.text["methods"])
    assert {"training.learning_rate", "0.02", "training.batch", "16"} <= set(page.text["configuration"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("predictions/test.parquet", b"junk", r"a/predictions/test\.parquet: damaged, or not of the classes"),
        ("config.json", b"{}", r"test\.parquet: damaged, or not of the classes in .*a/config\.json \(KeyError"),
        ("config.json", b'{"class_names": ["x", "y"]}', r"test\.parquet: damaged, or not of the classes in"),
        ("config.yaml", b"data: {bogus: 1}", r"a/config\.yaml: unknown key 'data\.bogus'"),
    ],
)
def test_a_damaged_run_among_many_is_one_line_that_names_the_file(runs, tmp_path, capsys, name, content, message):
    shutil.copytree(runs, tmp_path / "runs")
    (tmp_path / "runs" / "a" / name).write_bytes(content)
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "many.html")]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said)
    assert said.count("\n") == 1
    assert not (tmp_path / "many.html").exists()


def test_a_run_that_is_not_finished_is_left_out_by_name(runs, tmp_path, capsys):
    shutil.copytree(runs, tmp_path / "runs")
    log = tmp_path / "runs" / "b" / "metrics.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if '"final"' not in line))
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "many.html"), "--json"]) == 0
    said = capsys.readouterr()
    assert [Path(run).name for run in json.loads(said.out)["runs"]] == ["a", "c"]
    assert f"{tmp_path / 'runs' / 'b'}: not finished, left out" in said.err


def test_report_refuses_what_is_no_run(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for words, message in [
        (["report", str(tmp_path / "absent")], "no such run"),
        (["report", str(tmp_path / "empty")], "no finished run"),
        (["report", str(tmp_path / "empty"), "-o", "x.pdf"], "FILE.html"),
    ]:
        assert main(words) == 2
        assert message in capsys.readouterr().err
