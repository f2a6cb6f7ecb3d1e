"""`npmatch predict` as a user types it: one row per image, and files that cannot be read are named."""

import csv
import json
import os
import shutil

import pyarrow.parquet as pq
import pytest
import torch

import npmatch
from few_photos import save_photo
from npmatch.cli import main
from tiny import train_tiny


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    for i in range(6):
        save_photo((folder if i % 2 else folder / "inner") / f"{i}.png", seed=i)
    return folder


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_predict_writes_one_row_per_image(tiny_run, pictures, tmp_path, capsys, ending):
    out = tmp_path / "out" / f"predictions.{ending}"
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(out)]) == 0
    if ending == "csv":
        rows = read_csv(out)
        rows = [{**r, "probabilities": json.loads(r["probabilities"])} for r in rows]
    elif ending == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        rows = pq.read_table(out).to_pylist()
    assert list(rows[0]) == ["path", "label", "confidence", "uncertainty", "probabilities"]
    expected = npmatch.load(tiny_run.folder).predict([row["path"] for row in rows])
    assert len(rows) == 6
    for row, probs, entropy in zip(rows, expected.probs, expected.entropy, strict=True):
        torch.testing.assert_close(torch.tensor(row["probabilities"]), probs)
        assert float(row["confidence"]) == pytest.approx(probs.max().item(), rel=1e-5)
        assert float(row["uncertainty"]) == pytest.approx(entropy.item(), rel=1e-5)
        assert row["label"] == str(probs.argmax().item())


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_predict_writes_names_that_are_not_utf8(tiny_run, pictures, tmp_path, ending):
    (pictures / "1.png").rename(pictures / os.fsdecode(b"caf\xe9.png"))  # as an archive from elsewhere unpacks it
    out = tmp_path / f"out.{ending}"
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(out)]) == 0
    if ending == "parquet":
        paths = pq.read_table(out)["path"].to_pylist()
    elif ending == "jsonl":
        paths = [json.loads(line)["path"] for line in out.read_text("utf-8").splitlines()]
    else:
        with open(out, encoding="utf-8", newline="") as file:  # a strict reader
            paths = [row["path"] for row in csv.DictReader(file)]
    assert sum(path.endswith("/caf\\xe9.png") for path in paths) == 1


def test_a_broken_file_is_skipped_by_name_and_the_rest_is_predicted(tiny_run, pictures, tmp_path, capsys):
    (pictures / "broken.png").write_bytes(b"not a picture")
    out = tmp_path / "out.csv"
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(out)]) == 1
    captured = capsys.readouterr()
    assert "broken.png" in captured.err
    assert "6 images, 1 skipped" in captured.out
    assert len(read_csv(out)) == 6


def test_pictures_that_are_not_read_are_skipped_by_name(tiny_run, pictures, tmp_path, capsys):
    (pictures / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic")
    shutil.copy(pictures / "1.png", pictures / "misnamed.avif")  # read by its content, as any file is
    save_photo(pictures / "camera.dng", format="TIFF")  # as is the thumbnail in front of a raw picture
    (tmp_path / "album").mkdir()
    (pictures / "album").symlink_to(tmp_path / "album")
    out = tmp_path / "out.csv"
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(out), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    unread = "a picture in a format that is not read; save it as JPEG or PNG"
    assert told["skipped"] == [
        f"{pictures / 'album'}: a link to a folder, which is not followed; name it beside the others",
        f"{pictures / 'camera.dng'}: {unread}",
        f"{pictures / 'phone.heic'}: {unread}",
    ]
    assert told["written"] == len(read_csv(out)) == 7


def test_predict_refuses_what_it_cannot_write_or_find(tiny_run, pictures, tmp_path, capsys):
    assert main(["predict", str(tiny_run.folder), str(pictures), "-o", str(tmp_path / "out.xlsx")]) == 2
    assert ".csv" in capsys.readouterr().err
    assert main(["predict", str(tiny_run.folder), str(tmp_path / "absent"), "-o", str(tmp_path / "out.csv")]) == 2
    assert "absent: no such file" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_a_model_of_an_open_set_adds_the_probability_of_being_an_outlier(pictures, tmp_path):
    run = train_tiny(tmp_path / "run", algorithm="openmatch").folder
    out = tmp_path / "out.jsonl"
    assert main(["predict", str(run), str(pictures), "-o", str(out), "--top-k", "2"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert list(rows[0])[5:8] == ["label_2", "confidence_2", "outlier"]
    wanted = npmatch.load(run, "cpu").predict([row["path"] for row in rows])
    assert [row["outlier"] for row in rows] == pytest.approx(wanted.outlier.tolist(), abs=1e-5)
    assert "outlier" in pq.read_schema(run / "predictions" / "test.parquet").names
