"""Whole runs on two ranks: one folder, exact resume, one stop for all, predictions in order."""

import json

import pytest
import torch
from PIL import Image
from run_worker import BATCHES, WORLD, do_everything
from starting import run_together

import npmatch
from npmatch.data import load_dataset
from npmatch.predict.files import predict_files
from npmatch.runs.folder import RunFolder
from npmatch.training import load_tensors
from tiny import train_tiny

CLOCKS = ("seconds", "images_per_second")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The folder in which two ranks have done everything, and what each of them told."""
    folder = tmp_path_factory.mktemp("two-ranks")
    (folder / "pictures").mkdir()
    for i, pixels in enumerate(load_dataset("digits").test.images.pixels[:10, 0]):
        Image.fromarray(pixels.numpy()).save(folder / "pictures" / f"{i:02d}.png")
    (folder / "pictures" / "04.png").write_bytes(b"not a picture")
    run_together(do_everything, [(rank, folder) for rank in range(WORLD)])
    return folder, [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(WORLD)]


def log(folder):
    return [{k: v for k, v in record.items() if k not in CLOCKS} for record in RunFolder(folder).records()]


def state(folder):
    return load_tensors(sorted((folder / "checkpoints").iterdir())[-1])[0]


def test_a_run_is_that_of_one_process(two_ranks, tiny_run):
    """In float32, as users run it: not to the bit, but to rounding."""
    folder, _ = two_ranks
    alone, together = log(tiny_run.folder), log(folder / "straight")
    assert [(r["kind"], r["step"]) for r in alone] == [(r["kind"], r["step"]) for r in together]
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        assert other.get("loss", 0) == pytest.approx(one.get("loss", 0), rel=1e-3)
    names = {path.name for path in (folder / "straight").iterdir()}
    assert names >= {path.name for path in tiny_run.folder.iterdir()}
    assert json.loads((folder / "straight" / "environment.json").read_text())["ranks"] == WORLD


def test_a_resume_with_as_many_ranks_is_exact(two_ranks):
    folder, _ = two_ranks
    first, second = state(folder / "straight"), state(folder / "stopped")
    assert first.keys() == second.keys()
    assert not [name for name in first if not torch.equal(first[name], second[name])]
    assert log(folder / "straight") == log(folder / "stopped")


def test_a_resume_with_another_number_of_ranks_goes_on_learning(two_ranks):
    folder, _ = two_ranks
    run = train_tiny(folder / "stopped-for-one", resume=True, **BATCHES)  # one process goes on with what two had begun
    expected = log(folder / "straight")
    found = log(run.folder)
    assert [(r["kind"], r["step"]) for r in found] == [(r["kind"], r["step"]) for r in expected]
    for one, other in zip(expected, found, strict=True):
        assert other.get("loss", 0) == pytest.approx(one.get("loss", 0), rel=1e-3)


def test_all_ranks_stop_at_the_same_step_and_save(two_ranks):
    folder, told = two_ranks
    step, code = told[0]["signal"]
    assert [one["signal"] for one in told] == [[step, code]] * WORLD
    assert 3 <= step <= 13  # ranks ask one another at least every ten steps
    assert code == 143
    saved = sorted(path.name for path in (folder / "signal" / "checkpoints").iterdir())[-1]
    assert saved.startswith(f"step-{step:08d}")


def test_bad_input_ends_all_ranks_and_is_told_once(two_ranks):
    _, told = two_ranks
    for one in told:
        assert one["uneven"][1] == "training.batch=9: 2 ranks take equal shares; use 8 or 10"
    assert "holds a run already" in told[0]["again"][1]
    assert [one["again"][0] for one in told] == ["NPMatchError", "ReportedElsewhereError"]


def test_local_norms_differ_from_synchronised_ones_and_agree_between_ranks(two_ranks):
    folder, _ = two_ranks
    local, synchronised = (state(folder / name) for name in ("local-norm", "straight"))
    assert local.keys() == synchronised.keys()
    assert not torch.equal(*(s["algorithm/model.backbone.norms.0.running_var"] for s in (local, synchronised)))


def test_predictions_are_those_of_one_process_in_order(two_ranks):
    folder, told = two_ranks
    alone = npmatch.evaluate_run(folder / "straight").prediction.probs
    for one in told:
        assert torch.equal(torch.tensor(one["evaluation"]), alone)
    classifier = npmatch.load(folder / "straight")
    written, problems = predict_files(classifier, [folder / "pictures"], folder / "one.csv", batch_size=3)
    assert (folder / "two.csv").read_bytes() == (folder / "one.csv").read_bytes()
    assert [one["predicted"] for one in told] == [[written, problems]] * WORLD
    assert written == 9
    assert len(problems) == 1
