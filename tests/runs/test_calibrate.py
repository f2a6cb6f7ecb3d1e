"""The held-out labels of a run: what they are used for, what they must not be used for, and what is refused."""

import csv
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

import npmatch
from npmatch.cli import main
from npmatch.data import ImageSet, ImageStore, Split, load_dataset
from npmatch.decide import Calibration
from npmatch.errors import NPMatchError
from npmatch.metrics import scores
from npmatch.runs.calibrate import calibrate
from npmatch.training import load_tensors, save_tensors
from npmatch.training.checkpoint import checksum_of
from npmatch.types import Dataset


@pytest.fixture(scope="session")
def calibrated_run(tmp_path_factory) -> Path:
    """A run that held out 200 labels, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("runs") / "calibrated"
    settings = {"data.validation": 200, "training.iterations": 150, "training.batch": 16, "training.ema": 0.9}
    run = npmatch.fit("digits-40", algorithm="supervised", out=folder, device="cpu", quiet=True, overrides=settings)
    assert run.scores["error"] < 50
    return run.folder


def save_pictures(folder: Path, positions, by_class: bool = True) -> Path:
    """Training images of digits as files."""
    digits = load_dataset("digits").train
    for i in positions:
        place = folder / (str(int(digits.labels[i])) if by_class else "")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.images.pixels[i, 0].numpy()).save(place / f"{i}.png")
    return folder


def split_of(run: Path) -> Split:
    return Split.load(run / "split.json")


def test_a_run_fits_on_the_labels_it_held_out(calibrated_run):
    classifier = npmatch.load(calibrated_run)
    digits, split = load_dataset("digits"), split_of(calibrated_run)
    assert len(split.validation) == 200
    held_out = classifier.predict(digits.train.images.take(split.validation))
    calibration = classifier.calibration
    torch.testing.assert_close(calibration.held_out.probs, held_out.probs)
    assert torch.equal(calibration.y, digits.train.labels[split.validation])
    grid = [calibration.temperature * factor for factor in (0.8, 0.9, 1.0, 1.1, 1.25)]
    from npmatch.decide import tempered

    losses = [scores(tempered(held_out, t), calibration.y).nll for t in grid]
    assert min(losses) == losses[2]
    summary = json.loads((calibrated_run / "calibration.json").read_text())
    assert summary["held_out"]["labels"] == 200
    assert summary["held_out"]["errors"] == int((held_out.label != calibration.y).sum())
    assert summary["temperature"] == calibration.temperature


class Forbidden(ImageStore):
    """Images that must not be read."""

    shape = (1, 8, 8)

    def __len__(self) -> int:
        return 360

    def take(self, index):
        raise AssertionError("a test image was looked at")


def test_it_never_sees_a_test_image_nor_the_label_of_another_image(calibrated_run, tmp_path):
    classifier, split = npmatch.load(calibrated_run), split_of(calibrated_run)
    digits = load_dataset("digits")

    def fitted(labels: torch.Tensor, name: str) -> bytes:
        test = ImageSet(Forbidden(), torch.full((360,), -1))
        data = Dataset("digits", digits.class_names, ImageSet(digits.train.images, labels), test)
        (tmp_path / name).mkdir()
        calibrate(classifier, data, split, 256).save(tmp_path / name, checksum_of(calibrated_run / "model.safetensors"))
        return (tmp_path / name / "calibration.safetensors").read_bytes()

    lied = torch.full_like(digits.train.labels, -1)
    lied[split.validation] = digits.train.labels[split.validation]
    honest = (calibrated_run / "calibration.safetensors").read_bytes()
    assert fitted(lied, "lied") == honest, "only held-out labels are read: no pseudo-label, no training label"
    wrong = digits.train.labels.clone()
    wrong[split.validation] = (wrong[split.validation] + 1) % 10
    assert fitted(wrong, "wrong") != honest, "and those are read, so the test can fail"


def test_without_held_out_labels_novelty_alone_is_known(tiny_run):
    classifier = npmatch.load(tiny_run.folder)
    assert classifier.calibration.temperature is None
    assert classifier.calibration.n == 0
    test = load_dataset("digits").test.images.pixels
    noise = torch.randint(0, 256, test.shape, generator=torch.Generator().manual_seed(0)).byte()
    known, foreign = (classifier.decide(images, ood=True) for images in (test, noise))
    area = roc_auc_score([0] * len(test) + [1] * len(noise), torch.cat([known.ood_score, foreign.ood_score]))
    assert area > 0.95
    assert foreign.ood.float().mean() > 0.5
    assert known.ood.float().mean() < 0.06
    with pytest.raises(NPMatchError, match="45 are missing"):
        classifier.decide(test, abstain=0.05)


def test_decide_gives_calibrated_probabilities_and_predict_the_models_own(calibrated_run):
    classifier = npmatch.load(calibrated_run)
    test = load_dataset("digits").test
    own, decided = classifier.predict(test.images.pixels), classifier.decide(test.images.pixels, coverage=0.8)
    torch.testing.assert_close(classifier.calibration.apply(own).probs, decided.prediction.probs)
    assert decided.temperature == classifier.calibration.temperature
    raw = classifier.decide(test.images.pixels, calibrate=False)
    torch.testing.assert_close(raw.prediction.probs, own.probs)
    held = decided.sets[torch.arange(360), test.labels].float().mean()
    assert 0.7 < held < 0.9
    with pytest.raises(NPMatchError, match="no image"):
        classifier.decide([])


def test_evaluate_shows_both_and_only_what_is_honest(calibrated_run, tiny_run, tmp_path, monkeypatch, capsys):
    assert main(["evaluate", str(calibrated_run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    after = npmatch.load(calibrated_run).calibration.apply(npmatch.evaluate_run(calibrated_run).prediction)
    assert found["calibrated"]["ece"] == pytest.approx(scores(after, load_dataset("digits").test.labels).ece)
    assert found["calibrated"]["error"] == found["error"]
    assert main(["evaluate", str(calibrated_run)]) == 0
    assert "calibrated on 200 held-out labels" in capsys.readouterr().out
    digits = load_dataset("digits")
    alone = Dataset("digits", digits.class_names, digits.train, None, digits.mean, digits.std)
    monkeypatch.setattr("npmatch.runs.open.load_configured", lambda *a: alone)
    assert npmatch.evaluate_run(calibrated_run).calibrated is None, "these are the images it was fitted on"


def test_calibrate_on_a_users_images_and_refuse_those_it_has_seen(calibrated_run, tmp_path, capsys):
    run = shutil.copytree(calibrated_run, tmp_path / "run")
    before = Calibration.load(run)
    split = split_of(run)
    folder = save_pictures(tmp_path / "extra", split.validation[:60].tolist())
    assert main(["calibrate", str(run), "--labeled", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["held_out"]["labels"] == 60
    table = tmp_path / "extra.csv"
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(folder.glob("*/*.png"))]
    table.write_text("path,label\n" + "\n".join([*rows, "not_labelled_yet.png,"]))
    by_folder = (run / "calibration.safetensors").read_bytes()
    assert main(["calibrate", str(run), "--labeled", str(table)]) == 0
    assert (run / "calibration.safetensors").read_bytes() == by_folder
    assert main(["calibrate", str(run)]) == 0, "and back to its own"
    assert Calibration.load(run).temperature == before.temperature
    capsys.readouterr()

    def refused(labeled: Path) -> str:
        kept = (run / "calibration.safetensors").read_bytes()
        assert main(["calibrate", str(run), "--labeled", str(labeled)]) == 2
        assert (run / "calibration.safetensors").read_bytes() == kept
        return capsys.readouterr().err

    twice = shutil.copytree(folder, tmp_path / "twice")
    first = min(twice.glob("*/*.png"))
    shutil.copy(first, first.with_name("zz.png"))
    assert f"{first} and {first.with_name('zz.png')} are the same image" in refused(twice)
    trained = save_pictures(tmp_path / "renamed", split.labeled[:2].tolist())
    assert "and 1 more: the run was trained on it" in refused(trained)
    digit = load_dataset("digits").test
    (tmp_path / "tested" / "3").mkdir(parents=True)
    Image.fromarray(digit.images.pixels[5, 0].numpy()).save(tmp_path / "tested" / "3" / "new.png")
    assert "the run was tested on it" in refused(tmp_path / "tested")
    assert "unknown class 'ten'" in refused(save_pictures(tmp_path / "classes" / "ten", [0], by_class=False).parent)
    (tmp_path / "empty").mkdir()
    assert "no labelled image" in refused(tmp_path / "empty")
    (tmp_path / "empty" / "3").mkdir()
    (tmp_path / "empty" / "3" / "phone.heic").write_bytes(b"")
    assert "phone.heic: a picture in a format that is not read" in refused(tmp_path / "empty")
    assert "cannot be read" in refused(tmp_path / "absent.csv")


def test_labels_from_elsewhere_are_not_thrown_away_for_none(tiny_run, tmp_path, capsys):
    run = shutil.copytree(tiny_run.folder, tmp_path / "run")
    pictures = save_pictures(tmp_path / "more", range(30))
    for path in pictures.rglob("*.png"):  # at another brightness the run has not seen them
        Image.open(path).point(lambda value: value // 2).save(path)
    assert main(["calibrate", str(run), "--labeled", str(pictures)]) == 0
    before = (run / "calibration.safetensors").read_bytes()
    capsys.readouterr()
    assert main(["calibrate", str(run)]) == 2
    assert "is calibrated on 30 labels from elsewhere" in capsys.readouterr().err
    assert (run / "calibration.safetensors").read_bytes() == before


@pytest.mark.parametrize("damage", ["bytes", "format", "classes"])
def test_a_calibration_that_cannot_be_read_is_written_again(calibrated_run, tmp_path, capsys, damage):
    run = shutil.copytree(calibrated_run, tmp_path / "run")
    path = run / "calibration.safetensors"
    whole = path.read_bytes()
    tensors, scalars = load_tensors(path)
    if damage == "bytes":
        path.write_bytes(whole[:100])
    elif damage == "format":
        save_tensors(path, tensors, {**scalars, "format": 9})
    else:
        fewer = {"probs": tensors["probs"][:, :3], "labels": tensors["labels"].clamp_max(2)}
        save_tensors(path, {**tensors, **fewer}, scalars)
    assert main(["evaluate", str(run)]) == 2
    assert "npmatch calibrate writes it again" in capsys.readouterr().err
    assert main(["calibrate", str(run)]) == 0
    assert path.read_bytes() == whole


def test_a_calibration_of_another_model_is_refused_and_written_again(calibrated_run, tmp_path, capsys):
    """As where the files of two runs were mixed, or a process was killed between the model and its calibration."""
    run = shutil.copytree(calibrated_run, tmp_path / "run")
    whole = (run / "calibration.safetensors").read_bytes()
    weights, _ = load_tensors(run / "model.safetensors")
    save_tensors(run / "model.safetensors", {name: t * 0.5 if t.ndim == 4 else t for name, t in weights.items()})
    for words in (["evaluate", str(run)], ["report", str(run), "--out", str(tmp_path / "page.html")]):
        assert main(words) == 2
        assert "was fitted for other weights than those beside it" in capsys.readouterr().err
    assert main(["calibrate", str(run)]) == 0
    assert main(["evaluate", str(run)]) == 0
    assert (run / "calibration.safetensors").read_bytes() != whole


def test_a_saved_copy_keeps_its_calibration(calibrated_run, tmp_path):
    model = npmatch.load(calibrated_run)
    model.save_pretrained(tmp_path / "copy")
    again = npmatch.Classifier.from_pretrained(tmp_path / "copy")
    assert again.calibration.temperature == model.calibration.temperature


def test_predict_writes_what_was_asked_for(calibrated_run, tmp_path, capsys):
    pictures = save_pictures(tmp_path / "pictures", range(40))
    (pictures / "notes.txt").write_text("not a picture")
    words = ["predict", str(calibrated_run), str(pictures / "**" / "*"), "--top-k", "3", "--abstain", "0.12"]
    words += ["--ood", "--coverage", "0.9"]
    tables = {ending: tmp_path / f"out.{ending}" for ending in ("csv", "jsonl", "parquet")}
    for table in tables.values():
        assert main([*words, "-o", str(table)]) == 0
    rows = [json.loads(line) for line in tables["jsonl"].read_text().splitlines()]
    assert pq.read_table(tables["parquet"]).to_pylist()[0].keys() == rows[0].keys()
    with open(tables["csv"], newline="") as file:
        first = next(csv.DictReader(file))
    assert json.loads(first["prediction_set"]) == rows[0]["prediction_set"]
    assert json.loads(first["withheld"]) is rows[0]["withheld"]
    assert list(rows[0]) == [
        "path", "label", "confidence", "uncertainty", "probabilities", "label_2", "confidence_2", "label_3",
        "confidence_3", "temperature", "withheld", "ood_score", "ood", "prediction_set",
    ]  # fmt: skip
    assert len(rows) == 40
    decided = npmatch.load(calibrated_run).decide([r["path"] for r in rows], abstain=0.12, ood=True, coverage=0.9)
    assert [r["withheld"] for r in rows] == decided.withheld.tolist()
    assert {r["withheld"] for r in rows} == {True, False}
    withheld, unlike = (sum(r[flag] for r in rows) for flag in ("withheld", "ood"))
    assert f"40 images, {withheld} withheld, {unlike} unlike any seen, probabilities" in capsys.readouterr().out
    assert main([*words, "-o", str(tables["csv"]), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["written"], printed["withheld"], printed["ood"]) == (40, withheld, unlike)
    assert [len(r["prediction_set"]) for r in rows] == decided.sets.sum(-1).tolist()
    torch.testing.assert_close(torch.tensor([r["ood_score"] for r in rows]), decided.ood_score)
    for row in rows:
        ranked = sorted(row["probabilities"], reverse=True)
        assert [row["confidence"], row["confidence_2"], row["confidence_3"]] == pytest.approx(ranked[:3])
        assert row["probabilities"][int(row["label_2"])] == pytest.approx(ranked[1])
        assert row["label"] in row["prediction_set"]
    assert (
        main(["predict", str(calibrated_run), str(pictures), "-o", str(tmp_path / "raw.jsonl"), "--no-calibration"])
        == 0
    )
    raw = [json.loads(line) for line in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert "temperature" not in raw[0]
    assert raw[0]["path"] == rows[0]["path"]
    assert raw[0]["confidence"] != pytest.approx(rows[0]["confidence"], abs=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--abstain", "0.05"], "45 are missing"),
        (["--coverage", "0.9"], "needs at least 10 held-out labels"),
        (["--top-k", "11"], "from 1 to 10"),
        (["--ood", "--ood-quantile", "99"], "between 0 and 1"),
    ],
)
def test_predict_refuses_in_one_line_and_writes_nothing(tiny_run, tmp_path, capsys, words, message):
    pictures = save_pictures(tmp_path / "pictures", range(2))
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(tmp_path / "out.csv"), *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not list(tmp_path.glob("out*"))


def test_a_model_too_poor_for_its_target_withholds_everything_and_says_so(calibrated_run, tmp_path, capsys):
    pictures = save_pictures(tmp_path / "pictures", range(5))
    out = tmp_path / "out.jsonl"
    assert main(["predict", str(calibrated_run), str(pictures), "-o", str(out), "--abstain", "0.02"]) == 0
    assert "every prediction is withheld" in capsys.readouterr().err
    assert all(json.loads(line)["withheld"] for line in out.read_text().splitlines())
