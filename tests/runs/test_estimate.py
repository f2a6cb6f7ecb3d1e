"""A run without test images: its error is estimated and marked as such, until an audit measures it."""

import json

import pytest
import torch

import npmatch
from few_photos import WORDS, save_photos
from npmatch.cli import main
from npmatch.runs.estimate import estimate_error


@pytest.fixture
def run(tmp_path, monkeypatch):
    photos = save_photos(tmp_path / "photos", unlabeled=20, test=0)
    monkeypatch.chdir(tmp_path)
    npmatch.fit(data=photos, out="run", overrides=WORDS, quiet=True, device="cpu")
    return tmp_path / "run"


def test_the_estimate_is_the_mean_doubt_on_unlabelled_images(run):
    prediction = npmatch.load(run, device="cpu").predict(list(run.parent.glob("photos/unlabeled/*")))
    found = estimate_error(run)
    halved = torch.softmax(prediction.probs.log() / 2, -1)  # without held-out labels, at temperature 2
    assert found.error == pytest.approx(100 * float((1 - halved.max(-1).values).mean()), abs=1e-3)
    assert found.images == 20


def test_evaluate_and_report_mark_it_and_an_audit_replaces_it(run, capsys):
    capsys.readouterr()
    page = (run / "report.html").read_text()
    assert "estimated, not measured" in page
    assert "no test images" in page
    assert main(["evaluate", "run"]) == 0
    assert "estimated, not measured" in capsys.readouterr().out
    assert main(["evaluate", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["error_estimated"] == pytest.approx(estimate_error(run).error)
    assert main(["audit", "run", "-n", "8", "-o", "check.csv"]) == 0
    rows = (run.parent / "check.csv").read_text().splitlines()
    (run.parent / "check.csv").write_text("\n".join([rows[0], *(row.replace(",,", ",a,", 1) for row in rows[1:])]))
    assert main(["audit", "run", "check.csv"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["audits"][0]["overall"]
    assert measured["n"] == 8
    assert main(["report", "run"]) == 0
    page = (run / "report.html").read_text()
    assert "estimated, not measured" not in page
    assert "Audited error" in page
    assert f"{100 * measured['high']:.1f} %" in page
