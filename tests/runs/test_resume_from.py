"""A run that starts from another's weights, with labels given since: what it keeps, adds and refuses."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import npmatch
from few_photos import save_photo
from npmatch.errors import NPMatchError
from npmatch.runs.label_book import LabelBook
from npmatch.runs.open import open_run_data
from npmatch.runs.resume_from import next_folder
from npmatch.training import load_tensors
from same_runs import last_checkpoint, same_run
from tiny import TINY, stop_tiny, train_tiny

DIGITS = [str(digit) for digit in range(10)]


@pytest.fixture
def run(tiny_run, tmp_path):
    """A copy of the tiny run, with room for labels and further rounds."""
    return shutil.copytree(tiny_run.folder, tmp_path / "runs" / "tiny")


def unlabelled(run, count):
    return open_run_data(run).unlabeled().names[:count]


def go_on(run, **changes):
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    return npmatch.fit(resume_from=run, device="cpu", quiet=True, overrides=overrides).folder


def splits(*folders):
    return [json.loads((folder / "split.json").read_text()) for folder in folders]


def test_given_labels_become_labels_of_the_next_run(run):
    names = unlabelled(run, 3)
    truth = open_run_data(run).dataset.train.labels
    book = LabelBook(run, DIGITS)
    for name in names:
        book.set(name, "7")  # as if somebody took every digit for a seven: labels given win over the data's own
    second = go_on(run)
    assert second.name == "tiny-round2"
    opened = open_run_data(second)
    positions = [int(name[1:]) for name in names]
    before, after = splits(run, second)
    assert after["labeled"] == sorted(before["labeled"] + positions)
    assert after["validation"] == before["validation"]
    assert after["counts"]["unlabeled"] == before["counts"]["unlabeled"]  # the labelled are among them
    expected = truth.clone()
    expected[positions] = 7
    assert torch.equal(opened.dataset.train.labels, expected)
    assert opened.config.training.start_from == str(run)
    assert opened.config.training.iterations == 8  # a third of the 24 before
    assert not (second / "labels.csv").exists()  # the new run's own book starts empty
    assert npmatch.evaluate_run(second, device="cpu").held_out.labels.tolist()


def test_the_next_run_begins_with_the_averaged_weights_the_bank_and_the_norm_statistics(run):
    second = go_on(run, training__iterations=1, training__learning_rate=1e-30)
    before, after = last_checkpoint(run), last_checkpoint(second)
    parameters = [name.removeprefix("ema/") for name in before if name.startswith("ema/")]
    assert all(torch.equal(after[f"algorithm/{name}"], before[f"ema/{name}"]) for name in parameters)
    assert not all(torch.equal(before[f"algorithm/{name}"], before[f"ema/{name}"]) for name in parameters)
    banks = [name for name in before if name.endswith("bank.filled") or name.endswith(".filled")]
    assert banks
    assert all(after[name] >= before[name] > 1 for name in banks)
    statistics = [name for name in before if name.endswith("running_mean")]
    assert all(torch.allclose(after[name], before[name], atol=0.2) for name in statistics)
    assert all(after[name].abs().sum() > 0 for name in statistics)


def test_a_finished_model_without_checkpoints_is_enough(run):
    shutil.rmtree(run / "checkpoints")
    second = go_on(run, training__iterations=1, training__learning_rate=1e-30)
    before = load_tensors(run / "model.safetensors")[0]
    after = last_checkpoint(second)
    weights = [name for name in before if f"ema/model.{name}" in after]
    assert weights
    assert all(torch.equal(after[f"algorithm/model.{name}"], before[name]) for name in weights)
    banks = [name for name in before if name.endswith(".rows")]
    assert banks
    for name in banks:
        rows = after[f"algorithm/model.{name}"]
        assert rows.shape[0] == TINY["algorithm.bank"] + 1
        assert torch.allclose(rows[0], before[name][0])


def test_rounds_add_up_with_images_from_elsewhere(run, tmp_path):
    elsewhere = [str(tmp_path / f"{seed}.png") for seed in range(2)]
    for seed, path in enumerate(elsewhere):
        save_photo(Path(path), seed)
    first, second, third = unlabelled(run, 3)
    LabelBook(run, DIGITS).set(elsewhere[0], "1")
    LabelBook(run, DIGITS).set(first, "2")
    two = go_on(run, training__iterations=2)
    book = LabelBook(two, DIGITS)
    book.set(second, "3")
    book.set(elsewhere[1], "4")
    book.set(first, "5")  # somebody has changed their mind
    three = go_on(two)
    opened = open_run_data(three)
    place = {name: i for i, name in enumerate(opened.dataset.train.names)}
    labels = {name: int(opened.dataset.train.labels[place[name]]) for name in (*elsewhere, first, second)}
    assert labels == {elsewhere[0]: 1, elsewhere[1]: 4, first: 5, second: 3}
    assert [place[path] for path in elsewhere] == [1437, 1438]
    assert {place[name] for name in labels} <= set(opened.split.labeled.tolist())
    assert place[third] not in opened.split.labeled.tolist()
    assert opened.config.training.iterations == 2  # as many as the continuation before
    assert len(opened.split.labeled) == 44
    assert opened.file(1438).name == "1.png"
    assert three.name == "tiny-round3"


def test_a_run_may_move_with_its_labels(run, tmp_path):
    LabelBook(run, DIGITS).set(unlabelled(run, 1)[0], "2")
    second = go_on(run, training__iterations=1)
    moved = shutil.move(second, tmp_path / "elsewhere")
    assert len(open_run_data(moved).split.labeled) == 41
    assert npmatch.fit(out=moved, resume=True, quiet=True, device="cpu").scores


def test_an_interrupted_continuation_goes_on_alone(run, tmp_path):
    LabelBook(run, DIGITS).set(unlabelled(run, 1)[0], "2")
    words = {"resume_from": run, "device": "cpu", "quiet": True, "overrides": {"training.iterations": 16}}
    whole = npmatch.fit(out=tmp_path / "whole", **words)
    stop_tiny(tmp_path / "parts", 9, fit=lambda: npmatch.fit(out=tmp_path / "parts", **words))
    shutil.rmtree(run)  # its weights, its split and its labels are in the new run by now
    again = npmatch.fit(out=tmp_path / "parts", resume=True, device="cpu", quiet=True)
    assert same_run(again.folder, whole.folder)


def test_the_same_command_resumes_whatever_was_labelled_since(run, tmp_path):
    words = {"resume_from": run, "device": "cpu", "quiet": True, "overrides": {"training.iterations": 16}}
    stop_tiny(tmp_path / "parts", 9, fit=lambda: npmatch.fit(out=tmp_path / "parts", **words))
    LabelBook(run, DIGITS).set(unlabelled(run, 1)[0], "2")
    again = npmatch.fit(out=tmp_path / "parts", resume=True, **words)
    assert len(open_run_data(again.folder).split.labeled) == 40


@pytest.mark.parametrize("algorithm", ["flexmatch", "mpl"])
def test_labelled_images_leave_the_unlabelled_ones_where_the_run_keeps_them_apart(tmp_path, algorithm):
    changes = {"algorithm": algorithm, "data__include_labeled": False, "training__iterations": 3}
    run = train_tiny(tmp_path / "apart", **changes).folder
    names = unlabelled(run, 2)
    for name in names:
        LabelBook(run, DIGITS).set(name, "2")
    second = go_on(run)  # a curriculum over the unlabelled images is one of another length now
    before, after = splits(run, second)
    assert after["counts"]["unlabeled"] == before["counts"]["unlabeled"] - 2
    assert not {int(name[1:]) for name in names} & set(open_run_data(second).split.unlabeled.tolist())
    counts = last_checkpoint(second).get("algorithm/curriculum.counts")
    assert (algorithm == "flexmatch") == (counts is not None)
    assert counts is None or counts.sum() == after["counts"]["unlabeled"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__labels": 50}, "data.labels=50: a run with --resume-from keeps the split"),
        ({"algorithm__name": "fixmatch"}, "algorithm.name=fixmatch: a run with --resume-from keeps"),
        ({"backbone__width": 6}, r"its weights do not fit this configuration \(model.backbone"),
        ({"training__iterations": 0}, "must be greater than 0"),
    ],
)
def test_what_cannot_go_on_is_one_line_and_leaves_nothing(run, changes, message):
    with pytest.raises(NPMatchError, match=message):
        go_on(run, **changes)
    assert [path.name for path in run.parent.iterdir()] == ["tiny"]


def test_other_refusals(run, tmp_path):
    with pytest.raises(NPMatchError, match="nowhere"):
        go_on(tmp_path / "nowhere")
    with pytest.raises(NPMatchError, match="recipe=digits-40"):
        npmatch.fit("digits-40", resume_from=run)
    (run / "labels.csv").write_text("path,label\n#1437,3\n")
    with pytest.raises(NPMatchError, match=r"labels.csv, line 2: '#1437' is not an image"):
        go_on(run)
    (run / "labels.csv").write_text("path,label\n/no/where.png,3\n")
    with pytest.raises(NPMatchError, match=r"labels.csv: labels the image /no/where.png, which no longer exists"):
        go_on(run)
    shutil.rmtree(run / "checkpoints")
    (run / "model.safetensors").unlink()
    (run / "labels.csv").unlink()
    with pytest.raises(NPMatchError, match="neither a checkpoint nor a model"):
        go_on(run)
    assert [path.name for path in run.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("run", "expected"),
    [("photos", "photos-round2"), ("photos-round2", "photos-round3"), ("digits-0", "digits-0-round2")],
)
def test_names_of_rounds(run, expected, tmp_path):
    assert next_folder(tmp_path / run) == tmp_path / expected
