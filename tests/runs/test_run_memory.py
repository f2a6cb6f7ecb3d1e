"""Batches that do not fit into a GPU's memory are made smaller before a run starts."""

import pytest
import torch

import npmatch
from few_photos import save_photos
from npmatch.config.resolve import resolve_config
from npmatch.data import load_dataset, make_split
from npmatch.errors import NPMatchError
from npmatch.runs import memory
from npmatch.runs.build import build
from npmatch.runs.folder import RunFolder
from npmatch.training import Display, TrainingConfig
from tiny import TINY, train_tiny

CPU = torch.device("cpu")
FREE = {key: value for key, value in TINY.items() if key not in memory.FITTED_KEYS}  # batches are not given


def sizes(folder):
    t = RunFolder(folder).read_config().training
    return t.batch, t.unlabeled_ratio, t.eval_batch


@pytest.fixture
def small_memory(monkeypatch):
    """A GPU with room for a step on so many images, and an evaluation of so many, to be set by a test."""
    room = {"step": 10**6, "evaluation": 10**6}
    monkeypatch.setattr(memory, "is_limited", lambda device: True)
    monkeypatch.setattr(memory, "step_fits", lambda trainer, raw: raw.size <= room["step"])
    monkeypatch.setattr(memory, "evaluation_fits", lambda evaluator, images: images <= room["evaluation"])
    return room


def fit(folder, **words):
    settings = {**FREE, **{key.replace("__", "."): value for key, value in words.items()}}
    return npmatch.fit("digits-40", out=folder, device="cpu", overrides=settings)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), [(64, 7), (32, 7), (16, 7), (8, 7), (8, 3), (8, 1)]),
        ((memory.BATCH,), [(64, 7), (64, 3), (64, 1)]),
        ((memory.RATIO,), [(64, 7), (32, 7), (16, 7), (8, 7)]),
        ((memory.BATCH, memory.RATIO), [(64, 7)]),
    ],
)
def test_first_fewer_labelled_images_then_fewer_unlabelled_ones_for_each(given, expected):
    assert list(memory.smaller_steps(TrainingConfig(batch=64, unlabeled_ratio=7), given)) == expected


def test_batches_that_fit_stay_as_they_are(tmp_path, small_memory, capsys):
    fit(tmp_path / "run")
    batch, ratio, eval_batch = sizes(tmp_path / "run")
    assert eval_batch == 1024
    assert "in place of" not in capsys.readouterr().err
    small_memory["step"] = batch * (1 + ratio)
    fit(tmp_path / "again")
    assert sizes(tmp_path / "again") == (batch, ratio, 1024)


def test_a_smaller_batch_is_shown_stored_and_kept_when_the_run_is_resumed(tmp_path, small_memory, capsys):
    fit(tmp_path / "large")
    batch, ratio, _ = sizes(tmp_path / "large")
    small_memory |= {"step": batch // 2 * (1 + ratio), "evaluation": 300}
    fit(tmp_path / "run")
    assert sizes(tmp_path / "run") == (batch // 2, ratio, 256)
    line = f"training.batch={batch // 2} in place of {batch}, training.eval_batch=256 in place of 1024: more does not"
    assert line in capsys.readouterr().err
    settings = {"recipe": "digits-40", "out": tmp_path / "run", "device": "cpu", "overrides": FREE}
    npmatch.fit(**settings, resume=True)
    assert "finished already" in capsys.readouterr().err


def test_an_evaluation_in_smaller_batches_needs_no_other_trainer(tmp_path, small_memory, monkeypatch):
    small_memory["evaluation"] = 300
    built = []
    monkeypatch.setattr(memory, "build", lambda *args, **options: built.append(1) or build(*args, **options))
    fit(tmp_path / "run")
    assert sizes(tmp_path / "run")[2] == 256
    assert len(built) == 1


def test_what_was_given_is_never_changed(tmp_path, small_memory):
    small_memory |= {"step": 8 * (1 + 2), "evaluation": 10}
    with pytest.raises(
        NPMatchError, match=r"batch=16 with training\.unlabeled_ratio=2 needs .*batch=8 .*_ratio=2 would"
    ):
        fit(tmp_path / "run", training__batch=16, training__unlabeled_ratio=2)
    assert not RunFolder(tmp_path / "run").exists()
    fit(tmp_path / "run", training__batch=12, training__eval_batch=100)
    assert sizes(tmp_path / "run") == (12, 1, 100)


def test_a_step_that_never_fits_is_one_line(tmp_path, small_memory):
    small_memory["step"] = 5
    with pytest.raises(NPMatchError, match="so does every smaller batch"):
        fit(tmp_path / "run")


def test_a_trial_leaves_no_trace(tmp_path, monkeypatch):
    plain = train_tiny(tmp_path / "plain")
    monkeypatch.setattr(memory, "is_limited", lambda device: True)
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**20)
    tried = train_tiny(tmp_path / "tried")
    files = [run.folder / "model.safetensors" for run in (plain, tried)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_step_that_runs_out_of_memory_leaves_no_trace_either(monkeypatch):
    config = resolve_config("digits-40", overrides=TINY)
    dataset = load_dataset("digits")
    split = make_split(dataset, 40, 0)
    trainer, evaluator = build(config, dataset, split, CPU, Display("", 0, quiet=True))
    before = [tensor.clone() for tensor in trainer.state()]
    end = trainer.update.end
    tried = []

    def end_of_memory(step):
        tried.append(int(trainer.update.snapshot.index.numel()))
        if tried[-1] > 8:
            raise torch.OutOfMemoryError("no memory")
        return end(step)

    monkeypatch.setattr(memory, "free_memory", lambda device: 2**20)
    monkeypatch.setattr(trainer.update, "end", end_of_memory)
    fitting = memory.fit_batches(trainer, evaluator, (memory.BATCH,))
    assert tried == [16, 8]
    assert (fitting.batch, fitting.unlabeled_ratio) == (8, 1)
    after = trainer.state()[: len(before)]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert (trainer.step, trainer.config) == (0, config.training)


def test_only_a_lack_of_memory_is_caught():
    def fail(error):
        raise error

    assert memory.fits(lambda: None, CPU, 10)
    assert not memory.fits(lambda: fail(torch.OutOfMemoryError("x")), CPU, 10)
    assert not memory.fits(lambda: fail(RuntimeError("GET was unable to find an engine to execute this")), CPU, 10)
    with pytest.raises(RuntimeError, match="another"):
        memory.fits(lambda: fail(RuntimeError("another")), CPU, 10)


# ---- on a GPU of which a part may be used

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def limited():
    """A function that lets this process use so many GiB of the GPU's memory."""

    def limit(gib):
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gib * 2**30 / total))

    yield limit
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)


CLASSES = [f"kind-{number}" for number in range(102)]
FOLDERS = {
    "photos of 224 pixels": {"size": (224, 224), "classes": "abc", "labels": 10, "unlabeled": 500},
    "grey pictures": {"size": (224, 224), "classes": "abc", "labels": 10, "unlabeled": 500, "mode": "L"},
    "102 classes": {"size": (224, 224), "classes": CLASSES, "labels": 10, "unlabeled": 500},
}


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", [*FOLDERS, "mixed sizes"])
def test_no_folder_needs_a_setting_on_a_gpu_of_24_gib(tmp_path, limited, kind):
    photos = save_photos(tmp_path / "photos", **FOLDERS.get(kind, FOLDERS["photos of 224 pixels"]))
    if kind == "mixed sizes":
        for number, side in enumerate((50, 150, 300, 700)):
            save_photos(photos, size=(side, side + 100 * number), classes="abc", labels=4, unlabeled=20)
    limited(24)
    run = npmatch.fit(data=photos, out=tmp_path / "run", device="cuda", minutes=0.2)
    assert run.scores["n"] >= 3


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_with_little_memory_gets_smaller_batches(tmp_path, limited, capsys):
    photos = save_photos(tmp_path / "photos", **FOLDERS["photos of 224 pixels"])
    settings = {"data.image_size": 224, "backbone.name": "wrn-28-2", "training.iterations": 3}
    limited(6)
    npmatch.fit(data=photos, out=tmp_path / "run", device="cuda", overrides=settings)
    batch, ratio, eval_batch = sizes(tmp_path / "run")
    assert batch * (1 + ratio) < 64 * 8
    assert eval_batch < 1024
    assert "in place of" in capsys.readouterr().err
    given = {**settings, "training.batch": 64, "training.unlabeled_ratio": 7}
    with pytest.raises(NPMatchError, match="would fit"):
        npmatch.fit(data=photos, out=tmp_path / "given", device="cuda", overrides=given)
