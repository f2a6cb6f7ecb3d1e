"""A broken file never stops a run: it is left out, and every later step leaves it out too."""

import json
import os
import shutil

import pytest
import torch
from PIL import Image

import npmatch
from few_photos import WORDS, save_photos
from messy import make_messy
from npmatch.cli import main
from npmatch.data import ArrayImages, Dataset, ImageSet, Split, load_dataset
from npmatch.data.split import evaluation_set
from npmatch.errors import InterruptedRunError, NPMatchError
from npmatch.runs.open import open_run_data
from npmatch.training.loop import Trainer


def fit(folder, data, **options):
    overrides = {**WORDS, **options.pop("overrides", {})}
    return npmatch.fit(data=data, out=folder, quiet=True, device="cpu", overrides=overrides, **options)


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    return make_messy(tmp_path_factory.mktemp("messy") / "photos", unlabeled=20)


@pytest.fixture(scope="module")
def run(messy, tmp_path_factory):
    return fit(tmp_path_factory.mktemp("runs") / "run", messy.root)


def interrupted_at(step):
    """A step of training that is interrupted after that number of steps."""
    take_step = Trainer.take_step

    def stopping(self, raw):
        take_step(self, raw)
        if self.step == step:
            raise InterruptedRunError(self.step, 2)

    return stopping


def left_out(folder):
    return {row["path"]: row["reason"] for row in json.loads((folder / "quarantine.json").read_text())}


def test_a_run_on_the_messy_folder_leaves_out_what_is_broken(messy, run):
    listed = left_out(run.folder)
    for entry in messy.damage.values():
        if entry["reported_as"] in ("truncated", "empty-file", "not-an-image", "huge", "unreadable", "missing"):
            assert {listed[name] for name in entry["files"]} == {entry["reported_as"]}
    dataset = load_dataset("folder", messy.root, image_size=8)
    split = Split.load(run.folder / "split.json", dataset)
    out = {dataset.train.names[i] for i in split.left_out} | {dataset.test.names[i] for i in split.left_out_test}
    assert out == listed.keys()
    used = torch.cat([split.labeled, split.unlabeled])
    assert not torch.isin(used, split.left_out).any()
    assert len(used.unique()) + len(split.left_out) == len(dataset.train)
    assert run.scores["n"] == len(dataset.test) - 1


def test_names_that_are_not_utf8_are_trained_and_tested_on(photos, tmp_path):
    for name in ("labeled/a/0.png", "unlabeled/0.png", "test/a/0.png"):
        file = photos / name
        file.rename(file.with_name(os.fsdecode(b"caf\xe9.png")))
    run = fit(tmp_path / "run", photos)
    assert (run.folder / "report.html").exists()
    assert main(["evaluate", str(run.folder), "--json"]) == 0


def test_a_class_without_test_images_has_no_figures(photos, tmp_path, capsys):
    for file in (photos / "test" / "b").iterdir():
        file.unlink()
    run = fit(tmp_path / "run", photos)
    capsys.readouterr()
    assert main(["evaluate", str(run.folder)]) == 0
    printed = capsys.readouterr().out
    assert "nan" not in printed
    assert printed.count("–") == 2


def test_a_folder_that_is_not_used_is_a_warning(photos, tmp_path, capsys):
    (photos / "test").rename(photos / "val")
    fit(tmp_path / "run", photos)
    assert "folders beside labeled, unlabeled and test are not used: 'val'" in capsys.readouterr().err


def test_later_steps_leave_it_out_too(messy, run):
    assert len(npmatch.evaluate_run(run.folder).held_out) == run.scores["n"]
    data = open_run_data(run.folder)
    names = data.unlabeled().names
    assert names
    assert not set(names) & left_out(run.folder).keys()
    with pytest.raises(NPMatchError, match="not an image of this run"):
        data.book().set("unlabeled/empty.jpg", "1")


def test_a_resumed_run_sees_the_same_data(photos, tmp_path, monkeypatch):
    (photos / "unlabeled/0.png").write_bytes(b"")
    whole = fit(tmp_path / "whole", photos)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "take_step", interrupted_at(4))
        with pytest.raises(InterruptedRunError):
            fit(tmp_path / "run", photos)
    with monkeypatch.context() as patch:  # the run's own list decides, so nothing is looked at again
        patch.setattr("npmatch.runs.fit.check_images", None)
        run = fit(tmp_path / "run", photos, resume=True)
    assert left_out(run.folder) == {"unlabeled/0.png": "empty-file"} == left_out(whole.folder)
    assert (run.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


def test_pictures_in_formats_that_are_not_read_are_named(photos, tmp_path, capsys):
    (photos / "unlabeled" / "phone.heic").write_bytes(b"")
    fit(tmp_path / "run", photos, overrides={"training.iterations": 1})
    printed = " ".join(capsys.readouterr().err.split())
    assert "1 picture(s) in a format that is not read are left out" in printed
    assert "'unlabeled/phone.heic'" in printed


def test_a_leak_is_loud_even_when_quiet(photos, tmp_path, capsys):
    shutil.copy(photos / "test/a/0.png", photos / "labeled/a/leak.png")
    words = [f"{key}={value}" for key, value in WORDS.items()]
    run = tmp_path / "run"
    assert main(["train", "--data", str(photos), "--out", str(run), "--json", "--device", "cpu", *words]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["n"] == 2
    assert "warning: 1 training image(s) are test images too" in err
    assert "labeled/a/leak.png" in err
    assert left_out(run) == {"labeled/a/leak.png": "leak"}


def test_a_summary_line_when_not_quiet(photos, tmp_path, capsys):
    (photos / "unlabeled/0.png").write_bytes(b"")
    npmatch.fit(data=photos, out=tmp_path / "run", device="cpu", overrides=WORDS)
    assert "data: 14 files, 1 left out (1 empty-file; listed in quarantine.json)" in capsys.readouterr().err


def test_without_the_check_a_broken_file_stops_the_run_by_name(photos, tmp_path):
    (photos / "unlabeled/0.png").write_bytes(b"")
    with pytest.raises(NPMatchError, match=r"unlabeled/0\.png: not a readable image"):
        fit(tmp_path / "run", photos, overrides={"data.check": False})
    assert not (tmp_path / "run").exists()


def test_a_class_that_loses_all_its_images_fails_before_a_run_is_there(photos, tmp_path):
    for path in (photos / "labeled/a").iterdir():
        path.write_bytes(b"")
    with pytest.raises(NPMatchError, match=r"class 'a': 0 labelled image.*check-data"):
        fit(tmp_path / "run", photos)
    assert not (tmp_path / "run").exists()


def test_a_csv_may_list_files_that_are_gone(photos, tmp_path):
    table = photos / "table.csv"
    rows = [f"{path.relative_to(photos)},{path.parent.name}" for path in sorted(photos.glob("labeled/*/*.png"))]
    table.write_text("\n".join(["path,label", *rows, "gone.png,a", "unlabeled/0.png,"]))
    run = fit(tmp_path / "run", table)
    assert left_out(run.folder) == {"gone.png": "missing"}
    with pytest.raises(NPMatchError, match=r"line 10: .*gone\.png: no such file"):
        fit(tmp_path / "other", table, overrides={"data.check": False})


def test_a_sound_folder_has_no_list(photos, tmp_path):
    run = fit(tmp_path / "run", photos)
    assert not (run.folder / "quarantine.json").exists()


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_files_left_out_may_be_deleted_later(photos, tmp_path, kind):
    for name in ("labeled/a/00.png", "unlabeled/00.png", "test/a/00.png"):  # the first of each, so that all others move
        (photos / name).write_bytes(b"")
    table = photos / "table.csv"

    def write_table():
        rows = [f"{f.relative_to(photos)},{f.parent.name},{f.parts[-3]}" for f in sorted(photos.glob("*/[ab]/*.png"))]
        rows += [f"{f.relative_to(photos)},,train" for f in sorted(photos.glob("unlabeled/*.png"))]
        table.write_text("\n".join(["path,label,split", *rows]).replace(",labeled", ",train"))

    write_table()
    data, words = (table if kind == "csv" else photos), {"data.validation": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", interrupted_at(4))
        with pytest.raises(InterruptedRunError):
            fit(tmp_path / "run", data, overrides=words)
    before = open_run_data(tmp_path / "run")
    for name in left_out(tmp_path / "run"):
        (photos / name).unlink()
    write_table()
    run = fit(tmp_path / "run", data, overrides=words, resume=True)
    after = open_run_data(run.folder)
    for part in ("labeled", "unlabeled", "validation"):
        names = [[r.dataset.train.names[i] for i in getattr(r.split, part)] for r in (before, after)]
        assert names[0] == names[1]
    assert len(evaluation_set(after.dataset, after.split)) == len(evaluation_set(before.dataset, before.split)) == 2
    assert main(["evaluate", str(run.folder), "--json"]) == 0
    after.book().set("unlabeled/1.png", "b")
    again = fit(tmp_path / "again", data, resume_from=run.folder).folder
    assert "unlabeled/1.png" in open_run_data(again).split.names["labeled"]


def test_a_file_left_out_stays_so_if_it_was_mended_later(photos, tmp_path):
    content = (photos / "unlabeled/0.png").read_bytes()
    (photos / "unlabeled/0.png").write_bytes(b"")
    run = fit(tmp_path / "run", photos)
    (photos / "unlabeled/0.png").write_bytes(content)
    opened = open_run_data(run.folder)
    assert [opened.dataset.train.names[i] for i in opened.split.left_out] == ["unlabeled/0.png"]


@pytest.fixture
def copied(tmp_path):
    """Twelve labelled pictures of each class, each with a copy, the first of each class also among the unlabelled."""
    photos = save_photos(tmp_path / "photos", labels=12, test=0)
    for file in list(photos.glob("labeled/*/*.png")):
        shutil.copy(file, file.with_name(f"{file.stem} (1).png"))
    for name in "ab":
        with Image.open(photos / "labeled" / name / "0.png") as image:  # saved again: other bytes, the same picture
            image.save(photos / "unlabeled" / f"{name}.bmp")
    return photos


def as_table(photos):
    files = sorted(photos.rglob("*.png")) + sorted(photos.rglob("*.bmp"))
    labels = [file.parent.name if file.parent.parent.name == "labeled" else "" for file in files]
    (photos / "table.csv").write_text(
        "\n".join(["path,label", *(f"{f.relative_to(photos)},{k}" for f, k in zip(files, labels, strict=True))])
    )
    return photos / "table.csv"


def load_as_arrays(root):
    """A user's own data source: the images of a folder as arrays without names."""
    train = load_dataset("folder", root, image_size=8).train
    return Dataset("mine", ("a", "b"), ImageSet(ArrayImages(train.images.take(torch.arange(len(train)))), train.labels))


@pytest.mark.parametrize("kind", ["folder", "unchecked folder", "csv", "arrays"])
def test_copies_of_held_out_images_are_left_out(copied, tmp_path, kind):
    data = as_table(copied) if kind == "csv" else copied
    words = {"data.validation": 0.5, "data.check": kind != "unchecked folder", "data.workers": 0}
    if kind == "arrays":
        words |= {"data.source": f"{__name__}:load_as_arrays", "data.image_size": None}
    run = open_run_data(fit(tmp_path / "run", data, overrides=words).folder)
    train, split = run.dataset.train, run.split
    pixels = train.images.take(torch.arange(len(train))).flatten(1)
    used = torch.unique(torch.cat([split.labeled, split.unlabeled]))
    assert len(split.validation) == 12
    assert not any((pixels[used] == pixels[held]).all(1).any() for held in split.validation)
    copies = [i for i in range(len(train)) for j in split.validation.tolist() if i != j and pixels[i].equal(pixels[j])]
    assert split.left_out.tolist() == copies
    assert set(left_out(run.folder).values()) == {"held-out-copy"}
    assert len(left_out(run.folder)) == len(copies)


def test_a_folder_that_cannot_be_read_is_a_warning_of_check_train_and_predict(photos, tmp_path, capsys, forbid):
    closed = photos / "unlabeled" / "closed"
    closed.mkdir()
    forbid(closed)
    assert main(["check-data", str(photos)]) == 0
    assert "unreadable-folder" in capsys.readouterr().out
    run = fit(tmp_path / "run", photos).folder
    assert "1 folder(s) cannot be read and are left out" in " ".join(capsys.readouterr().err.split())
    assert main(["predict", str(run), str(photos), "-o", str(tmp_path / "out.csv"), "--device", "cpu"]) == 1
    assert f"{closed}: a folder that cannot be read (Permission denied)" in capsys.readouterr().err.replace("\n", "")
