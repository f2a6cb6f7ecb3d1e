"""Learning curves: judged on the way by images whose labels were hidden, and at the end as a plain training is."""

import itertools
import json

import pytest
import torch

import npmatch
from benchmarks.command_line import run
from benchmarks.curves import error_under_best_names, main
from benchmarks.process_scores import hidden_images
from npmatch.metrics import scores
from npmatch.predict.batches import predict_store
from npmatch.runs.fit import fit
from npmatch.runs.open import open_run_data

SMALL = ["training.batch=8", "training.unlabeled_ratio=2", "backbone.width=4", "training.log_every=2"]
STEPS = ["--iterations", "12", "--points", "3", "--device", "cpu"]


def test_errors_on_the_way_and_that_of_a_plain_training_at_the_end(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    methods = ["--methods", "kernel[max_entropy=2],flexmatch", "--seeds", "10"]
    assert run(main, ["digits-40", *SMALL, *STEPS, *methods, "-o", "points.jsonl", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["method"], row["seed"]) for row in rows] == [("kernel[max_entropy=2]", 10), ("flexmatch", 10)]
    points = [json.loads(line) for line in (tmp_path / "points.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points] == [4, 8, 12] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["points.jsonl"], "nothing else is written"
    last = rows[1]
    assert last["error"] == last["error/12"] == points[5]["error"]
    assert last["best_names"] <= last["error"]
    assert 0 < last["trusted"] <= 100
    assert last["step_ms"] > 0

    settings = [*SMALL, "training.iterations=12", "training.eval_every=4"]
    fit("digits-40", algorithm="flexmatch", out="run", seed=10, device="cpu", overrides=settings, quiet=True)
    data, classifier = open_run_data(tmp_path / "run", None), npmatch.load("run", "cpu")
    judged, _ = hidden_images(data.dataset, data.split)
    prediction = predict_store(classifier.model, judged.images, classifier.spec, torch.device("cpu"), 256)
    assert scores(prediction, judged.labels).error == pytest.approx(last["error"], abs=1e-6)


def test_the_best_names_are_the_best_of_all_permutations():
    table = torch.randint(0, 50, (4, 4), generator=torch.Generator().manual_seed(0))
    right = max(sum(int(table[i, j]) for i, j in enumerate(order)) for order in itertools.permutations(range(4)))
    assert error_under_best_names(table) == pytest.approx(100 * (1 - right / int(table.sum())))
    assert error_under_best_names(torch.eye(3).roll(1, 0)) == 0, "exchanged names are no error"
    merged = torch.tensor([[10, 0], [10, 0]])
    assert error_under_best_names(merged) == 50, "two classes that became one are"


def test_an_ensemble_is_refused(capsys):
    assert run(main, ["digits-40", *SMALL, *STEPS, "--methods", "5*flexmatch"]) == 2
    assert "5*flexmatch: an ensemble has no curve" in capsys.readouterr().err
