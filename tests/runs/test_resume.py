"""What a resumed run refuses and what it reports; and that only one process works in a folder."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import torch
import yaml

import npmatch
from few_photos import WORDS, save_photo, save_photos
from npmatch.data import load_dataset
from npmatch.data.fingerprint import describe_data, list_changes
from npmatch.data.stratify import make_split
from npmatch.errors import NPMatchError
from npmatch.files import locked
from npmatch.runs.open import open_run_data
from npmatch.training import load_tensors, save_tensors
from npmatch.training.loop import Trainer
from same_runs import same_run
from tiny import stop_tiny, train_tiny


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "run"
    stop_tiny(folder, 12)
    return folder


@pytest.fixture
def stopped(stopped_run, tmp_path):
    """A run that ended after step 12, to be resumed."""
    return shutil.copytree(stopped_run, tmp_path / "run")


def edit_json(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_another_configuration_is_refused_unless_allowed(stopped, capfd):
    with pytest.raises(NPMatchError, match=r"training\.learning_rate: 0\.03 → 0\.01.*--allow-change"):
        train_tiny(stopped, resume=True, training__learning_rate=0.01)
    run = train_tiny(stopped, resume=True, allow_change=True, training__learning_rate=0.01)
    assert "learning_rate: 0.03 → 0.01" in capfd.readouterr().err
    assert yaml.safe_load((run.folder / "config.yaml").read_text())["training"]["learning_rate"] == 0.01
    assert [r["step"] for r in run.records() if r["kind"] == "train"] == [5, 10, 15, 20, 24]


def test_a_longer_training_goes_on_from_a_finished_one(tiny_run, tmp_path):
    folder = shutil.copytree(tiny_run.folder, tmp_path / "run")
    run = train_tiny(folder, resume=True, allow_change=True, training__iterations=30)
    assert [r["step"] for r in run.records() if r["kind"] == "train"] == [5, 10, 15, 20, 24, 25, 30]
    assert [r["step"] for r in run.records() if r["kind"] == "final"] == [30]


def test_a_setting_that_changes_no_result_is_no_change(stopped, tiny_run):
    run = train_tiny(stopped, resume=True, training__on_save_error="continue", data__workers=0)
    assert same_run(run.folder, tiny_run.folder)


def test_other_pixels_are_refused_unless_allowed(stopped, monkeypatch):
    digits = load_dataset("digits")
    digits.train.images.pixels[700] += 1
    monkeypatch.setattr("npmatch.data.fingerprint.IMAGES", 10_000)
    edit_json(stopped / "data.json", **describe_data(load_dataset("digits"), make_split_of(stopped)))
    monkeypatch.setattr("npmatch.runs.fit.load_configured", lambda *a: digits)
    with pytest.raises(NPMatchError, match=r"other data \(contents changed\).*--allow-change"):
        train_tiny(stopped, resume=True)
    train_tiny(stopped, resume=True, allow_change=True)


def make_split_of(folder):
    from npmatch.data import Split

    return Split.load(folder / "split.json")


def test_another_split_is_refused_unless_allowed(stopped):
    split = json.loads((stopped / "split.json").read_text())
    other = make_split(load_dataset("digits"), 40, seed=7)
    (stopped / "split.json").write_text(json.dumps({**split, "labeled": other.labeled.tolist()}))
    with pytest.raises(NPMatchError, match=r"split changed"):
        train_tiny(stopped, resume=True)
    train_tiny(stopped, resume=True, allow_change=True)


def test_data_that_no_longer_fits_the_state_is_one_line(stopped, monkeypatch):
    digits = load_dataset("digits")
    digits.train = npmatch.ImageSet(type(digits.train.images)(digits.train.images.pixels[:1000]),
                                    digits.train.labels[:1000])  # fmt: skip
    monkeypatch.setattr("npmatch.runs.fit.load_configured", lambda *a: digits)
    with pytest.raises(NPMatchError, match="made for other data"):
        train_tiny(stopped, resume=True)
    with pytest.raises(NPMatchError, match=r"step 7 does not fit this configuration, data"):
        train_tiny(stopped, resume=True, allow_change=True)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_state_that_does_not_fit_leaves_the_run_as_it_was(stopped, tiny_run):
    before = contents(stopped)
    with pytest.raises(NPMatchError, match=r"run/checkpoints: step 7 does not fit.*size mismatch for model\.backbone"):
        train_tiny(stopped, resume=True, allow_change=True, backbone__width=8)
    assert contents(stopped) == before
    assert same_run(train_tiny(stopped, resume=True).folder, tiny_run.folder)


@pytest.mark.parametrize("part", ["algorithm", "ema", "momentum", "bad_steps"])
def test_a_checkpoint_that_lacks_a_part_is_one_line(stopped, part):
    path = stopped / "checkpoints" / "step-00000007.safetensors"
    tensors, scalars = load_tensors(path)
    save_tensors(path, {name: t for name, t in tensors.items() if not name.startswith(f"{part}/")}, scalars)
    before = contents(stopped)
    with pytest.raises(NPMatchError, match=rf"step 7 does not fit .*\('{part}'\)"):
        train_tiny(stopped, resume=True)
    assert contents(stopped) == before


@pytest.mark.parametrize("step", [-1, True, 7.0, "7", None])
def test_a_checkpoint_of_no_step_is_none(stopped, step):
    path = stopped / "checkpoints" / "step-00000007.safetensors"
    save_tensors(path, load_tensors(path)[0], {"step": step})
    with pytest.raises(NPMatchError, match="no checkpoint in it can be read"):
        train_tiny(stopped, resume=True)


def test_fewer_iterations_than_the_checkpoint_has_are_a_warning(stopped, capfd):
    run = train_tiny(stopped, resume=True, allow_change=True, training__iterations=5)
    assert "is at step 7, beyond training.iterations=5" in capfd.readouterr().err
    assert [r["step"] for r in run.records() if r["kind"] == "final"] == [7]


def test_lines_that_the_log_has_lost_are_reported_once(stopped, tiny_run, capfd):
    log = stopped / "metrics.jsonl"
    log.unlink()
    stop_tiny(stopped, 17, resume=True)
    assert f"{log}: has lost 1 of its 1 line(s) up to step 7," in " ".join(capfd.readouterr().err.split())
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"eval"' not in line))
    run = train_tiny(stopped, resume=True)
    assert f"{log}: has lost 1 of its 2 line(s) up to step 14," in " ".join(capfd.readouterr().err.split())
    assert [r["step"] for r in run.records() if r["kind"] == "train"] == [10, 15, 20, 24]
    assert weights(run.folder) == weights(tiny_run.folder)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_a_whole_log_is_no_warning(stopped, tiny_run, capfd):
    run = train_tiny(stopped, resume=True)
    assert "warning" not in capfd.readouterr().err
    assert same_run(run.folder, tiny_run.folder)


def test_changed_files_and_labels_are_named(tmp_path):
    save_photos(tmp_path, classes=("cat", "dog"), labels=2, unlabeled=3, test=0)

    def describe():
        dataset = load_dataset("folder", tmp_path, 8)
        return describe_data(dataset, make_split(dataset, 2, seed=0))

    before = describe()
    assert list_changes(before, describe()) == []
    save_photo(tmp_path / "unlabeled" / "1.png", seed=50)
    assert list_changes(before, describe()) == ["contents changed"]
    os.rename(tmp_path / "labeled/dog/1.png", tmp_path / "labeled/dog/7.png")
    assert "file names changed" in list_changes(before, describe())
    os.rename(tmp_path / "labeled/dog", tmp_path / "labeled/hound")
    assert "classes: ['cat', 'dog'] → ['cat', 'hound']" in list_changes(before, describe())
    os.remove(tmp_path / "unlabeled/0.png")
    assert "images: 7 → 6" in list_changes(before, describe())


def test_nothing_to_resume_is_reported_if_the_folder_is_absent_empty_or_barely_started(tmp_path, tiny_run, capfd):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("split.json", "data.json.tmp", ".lock"):
        (folder / name).write_text('{"labeled": [1, 2')  # killed while it wrote
    run = npmatch.fit("digits-40", out=folder, resume=True, device="cpu", overrides=tiny_settings())
    assert "nothing to resume" in capfd.readouterr().err
    assert same_run(run.folder, tiny_run.folder)
    run = npmatch.fit(out=folder, resume=True, device="cpu")
    assert "finished already" in capfd.readouterr().err


def tiny_settings():
    from tiny import TINY

    return TINY


def test_a_run_of_another_version_is_named(stopped):
    config = yaml.safe_load((stopped / "config.yaml").read_text())
    config["training"]["warp_speed"] = 9
    (stopped / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(NPMatchError, match=r"unknown key 'training\.warp_speed'"):
        train_tiny(stopped, resume=True)
    edit_json(stopped / "environment.json", npmatch="9.1.0")
    with pytest.raises(NPMatchError, match=r"written by npmatch 9\.1\.0, .* use that version"):
        train_tiny(stopped, resume=True)


def test_a_failed_start_leaves_no_folder(tmp_path):
    with pytest.raises(NPMatchError, match="at least one"):
        train_tiny(tmp_path / "new", data__labels=3)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_in_one_folder_are_refused_and_death_releases_it(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from npmatch.files import locked\n"
        "with locked(Path(sys.argv[1])):\n print('in', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "in\n"
        with pytest.raises(
            NPMatchError, match=rf"another process is at work in this folder \(process {holder.pid} on "
        ):
            train_tiny(tmp_path)
        holder.kill()
        holder.wait()
        for _ in range(100):
            try:
                with locked(tmp_path), pytest.raises(NPMatchError, match="this one"), locked(tmp_path):
                    pass
                break
            except NPMatchError:
                time.sleep(0.05)
        else:
            pytest.fail("the lock outlived its process")
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize("step", [12, 22])  # before a checkpoint, and before the end, when the model is written
def test_a_run_that_another_process_has_taken_over_is_left_alone(tmp_path, monkeypatch, step):
    """As where a file server gave up the lock of a machine that it lost contact with."""
    folder, take_step, found = tmp_path / "run", Trainer.take_step, {}

    def taking_over(self, raw):
        take_step(self, raw)
        if self.step == step:
            (folder / ".lock").write_text("process 7 on elsewhere\n")
            log = folder / "metrics.jsonl"  # a resumed run replaces its log
            shutil.copy(log, tmp_path / "log")
            os.replace(tmp_path / "log", log)
            found.update({path: path.read_bytes() for path in folder.rglob("*") if path.is_file()})

    monkeypatch.setattr(Trainer, "take_step", taking_over)
    with pytest.raises(NPMatchError, match=r"run: was taken over by another process \(process 7 on elsewhere\)"):
        train_tiny(folder)
    now = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    is_own = "tfevents"  # each process writes a file of its own for TensorBoard
    assert {p: b for p, b in now.items() if is_own not in p.name} == {
        p: b for p, b in found.items() if is_own not in p.name
    }


def test_the_default_generators_come_back_after_a_run(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_tiny(tmp_path / "run", training__iterations=2)
    assert torch.equal(torch.rand(3), expected)


def test_deterministic_algorithms_are_on_for_the_run_alone_and_what_has_none_is_one_line(tmp_path, monkeypatch):
    from npmatch.training.loop import Trainer

    seen = []
    monkeypatch.setattr(Trainer, "run", lambda self: seen.append(torch.are_deterministic_algorithms_enabled()))
    train_tiny(tmp_path / "run", training__deterministic=True)
    assert seen == [True]
    assert not torch.are_deterministic_algorithms_enabled()

    def refuse(self):
        raise RuntimeError("frobnicate_cuda does not have a deterministic implementation")

    monkeypatch.setattr(Trainer, "run", refuse)
    with pytest.raises(NPMatchError, match=r"training\.deterministic=true: frobnicate_cuda.*set it to false"):
        train_tiny(tmp_path / "other", training__deterministic=True)


def test_nothing_unlabelled_to_learn_from_is_one_line_and_no_folder(tmp_path):
    save_photos(tmp_path / "photos", labels=1, unlabeled=0, test=0)
    few = {"data.include_labeled": False, "training.iterations": 2, "training.batch": 2, "backbone.name": "cnn"}
    with pytest.raises(NPMatchError, match=r"there are no unlabelled images to learn from.*data\.include_labeled"):
        npmatch.fit(data=tmp_path / "photos", out=tmp_path / "run", quiet=True, overrides=few, device="cpu")
    assert not (tmp_path / "run").exists()


def names_of_parts(folder):
    run = open_run_data(folder)
    return {
        part: {run.dataset.train.names[i] for i in getattr(run.split, part)}
        for part in ("labeled", "unlabeled", "validation", "left_out")
    }


@pytest.mark.parametrize("labels", [None, 8])
def test_an_image_more_leaves_every_image_in_its_part(tmp_path, labels):
    photos = save_photos(tmp_path / "photos", labels=12)
    words = {**WORDS, "data.validation": 0.3, "data.labels": labels}

    def fit(**options):
        return npmatch.fit(data=photos, out=tmp_path / "run", quiet=True, device="cpu", overrides=words, **options)

    stop_tiny(tmp_path / "run", 3, fit)
    before = names_of_parts(tmp_path / "run")
    held = min(before["validation"])
    save_photo(photos / "labeled/a/000.png", seed=1)  # comes before all others
    save_photo(photos / "unlabeled/000.png", seed=2)
    shutil.copy(photos / held, photos / "unlabeled/copy.png")
    with pytest.raises(NPMatchError, match="made for other data: 28 training images, here are 31"):
        fit(resume=True)
    fit(resume=True, allow_change=True)
    after = names_of_parts(tmp_path / "run")
    assert after["validation"] == before["validation"]
    new = {"labeled/a/000.png"}
    assert after["labeled"] == before["labeled"] | (new if labels is None else set())
    assert after["unlabeled"] == before["unlabeled"] | new | {"unlabeled/000.png"}
    assert after["left_out"] == {"unlabeled/copy.png"}


def test_a_split_without_names_is_not_guessed_for_other_data(tmp_path, photos):
    def fit(**options):
        return npmatch.fit(data=photos, out=tmp_path / "run", quiet=True, device="cpu", overrides=WORDS, **options)

    stop_tiny(tmp_path / "run", 3, fit)
    edit_json(tmp_path / "run/split.json", names={})
    save_photo(photos / "unlabeled/000.png", seed=2)
    with pytest.raises(NPMatchError, match="older version wrote it without the names"):
        fit(resume=True, allow_change=True)
