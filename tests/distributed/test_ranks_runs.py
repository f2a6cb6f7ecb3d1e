"""Whole runs on two ranks: one folder, exact resume, a common stop, predictions in order."""

import json

import pytest
import torch
from PIL import Image
from run_worker import BATCHES, WORLD, do_everything

import npmatch
from npmatch.data import load_dataset
from npmatch.errors import NPMatchError
from npmatch.predict.files import predict_files
from npmatch.runs.folder import RunFolder
from npmatch.training import load_tensors
from starting import run_together
from tiny import train_tiny

CLOCKS = ("seconds", "images_per_second")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The folder in which two ranks have done everything, and the results of each rank."""
    folder = tmp_path_factory.mktemp("two-ranks")
    (folder / "pictures").mkdir()
    for i, pixels in enumerate(load_dataset("digits").test.images.pixels[:10, 0]):
        Image.fromarray(pixels.numpy()).save(folder / "pictures" / f"{i:02d}.png")
    (folder / "pictures" / "04.png").write_bytes(b"not a picture")
    run_together(do_everything, [(rank, folder) for rank in range(WORLD)])
    return folder, [json.loads((folder / f"results-{rank}.json").read_text()) for rank in range(WORLD)]


def log(folder):
    return [{k: v for k, v in record.items() if k not in CLOCKS} for record in RunFolder(folder).records()]


def state(folder):
    return load_tensors(sorted((folder / "checkpoints").iterdir())[-1])[0]


def test_a_run_equals_that_of_one_process(two_ranks, tiny_run):
    """In float32, as users run it: equal up to rounding, not to the bit."""
    folder, _ = two_ranks
    alone, together = log(tiny_run.folder), log(folder / "straight")
    assert [(r["kind"], r["step"]) for r in alone] == [(r["kind"], r["step"]) for r in together]
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        assert other.get("loss", 0) == pytest.approx(one.get("loss", 0), rel=1e-3)
    names = {path.name for path in (folder / "straight").iterdir()}
    assert names >= {path.name for path in tiny_run.folder.iterdir()}
    assert json.loads((folder / "straight" / "environment.json").read_text())["ranks"] == WORLD


def test_a_resume_with_the_same_number_of_ranks_is_exact(two_ranks):
    folder, _ = two_ranks
    first, second = state(folder / "straight"), state(folder / "stopped")
    assert first.keys() == second.keys()
    assert not [name for name in first if not torch.equal(first[name], second[name])]
    assert log(folder / "straight") == log(folder / "stopped")


def test_one_process_can_resume_a_run_of_two_ranks(two_ranks):
    folder, _ = two_ranks
    run = train_tiny(folder / "stopped-for-one", resume=True, **BATCHES)
    expected, resumed = log(folder / "straight"), log(run.folder)
    assert [(r["kind"], r["step"]) for r in resumed] == [(r["kind"], r["step"]) for r in expected]
    for straight_record, resumed_record in zip(expected, resumed, strict=True):
        assert resumed_record.get("loss", 0) == pytest.approx(straight_record.get("loss", 0), rel=1e-3)


def test_all_ranks_stop_at_the_same_step_and_save(two_ranks):
    folder, results = two_ranks
    step, code = results[0]["signal"]
    assert [result["signal"] for result in results] == [[step, code]] * WORLD
    assert 3 <= step <= 13  # ranks agree at least every ten steps
    assert code == 143
    saved = sorted(path.name for path in (folder / "signal" / "checkpoints").iterdir())[-1]
    assert saved.startswith(f"step-{step:08d}")


def test_bad_input_ends_all_ranks_and_is_reported_once(two_ranks):
    _, results = two_ranks
    for result in results:
        assert result["uneven"][1] == "training.batch=9: 2 ranks take equal shares; use 8 or 10"
    assert "holds a run already" in results[0]["again"][1]
    assert [result["again"][0] for result in results] == ["NPMatchError", "ReportedElsewhereError"]


def test_a_batch_that_cannot_be_divided_is_refused_before_the_images_are_read(monkeypatch, tmp_path):
    monkeypatch.setattr("npmatch.runs.fit.world_size", lambda: 2)
    monkeypatch.setattr("npmatch.runs.fit.load_configured", lambda _: pytest.fail("read"))
    with pytest.raises(NPMatchError, match=r"training\.batch=15: 2 ranks take equal shares; use 14 or 16"):
        train_tiny(tmp_path / "run", training__batch=15)
    assert not (tmp_path / "run").exists()


def test_local_norms_differ_from_synchronised_ones_and_agree_between_ranks(two_ranks):
    folder, _ = two_ranks
    local, synchronised = (state(folder / name) for name in ("local-norm", "straight"))
    assert local.keys() == synchronised.keys()
    assert not torch.equal(*(s["algorithm/model.backbone.norms.0.running_var"] for s in (local, synchronised)))


def test_predictions_equal_those_of_one_process_in_order(two_ranks):
    folder, results = two_ranks
    alone = npmatch.evaluate_run(folder / "straight").prediction.probs
    for result in results:
        assert torch.equal(torch.tensor(result["evaluation"]), alone)
    classifier = npmatch.load(folder / "straight")
    written, problems = predict_files(classifier, [folder / "pictures"], folder / "one.csv", batch_size=3)
    assert (folder / "two.csv").read_bytes() == (folder / "one.csv").read_bytes()
    assert [result["predicted"] for result in results] == [[written, problems]] * WORLD
    assert written == 9
    assert len(problems) == 1
