"""The first labels of a folder without any: what is chosen, what is never chosen, and the way on to a model."""

import csv
import json

import pytest
import torch
import torch.nn.functional as F

import npmatch
from few_photos import save_photos
from npmatch.cli import main
from npmatch.errors import NPMatchError
from npmatch.labelling.first import choose_typical, kernel, suggest_first


def blobs(number, size, spread=0.05):
    """`number` well-separated groups of unit vectors, and the group of each."""
    g = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(number, 64, generator=g), dim=-1)
    group = torch.arange(number).repeat_interleave(size)
    return F.normalize(centres[group] + spread * torch.randn(number * size, 64, generator=g), dim=-1), group


def greedy(f, count, known=()):
    """The gains of the picks without short cuts: every gain is computed anew for every pick."""
    k = torch.stack([torch.stack([(-((a - b) ** 2).sum()).exp() for b in f]) for a in f])
    covered = torch.zeros(len(f), dtype=f.dtype)
    for row in known:
        covered = torch.maximum(covered, torch.stack([(-((row - b) ** 2).sum()).exp() for b in f]))
    best = []
    for _ in range(count):
        gains = (k - covered).clamp(min=0).sum(1)
        best.append(float(gains.max()))
        covered = torch.maximum(covered, k[gains.argmax()])
    return best


def test_ten_picks_are_of_ten_groups():
    f, group = blobs(10, 7)
    assert len({int(group[row]) for row, _ in choose_typical(f, 10)}) == 10


def test_the_choice_is_that_of_the_plain_greedy_rule():
    f, _ = blobs(6, 5, spread=0.3)
    f = F.normalize(f.double(), dim=-1)
    # Of two images that are each other's neighbours the gains are equal, and either may be chosen.
    assert [gain for _, gain in choose_typical(f, 12)] == pytest.approx(greedy(f, 12))
    assert [gain for _, gain in choose_typical(f, 6, known=f[:3])] == pytest.approx(greedy(f, 6, known=f[:3]))


def test_gains_never_rise_and_a_copy_of_a_pick_adds_nothing():
    f, _ = blobs(5, 6, spread=0.3)
    picks = choose_typical(torch.cat([f, f]), 60)
    gains = [gain for _, gain in picks]
    assert gains == sorted(gains, reverse=True)
    assert len(picks) == 60
    assert gains[30:] == pytest.approx([0] * 30, abs=1e-4)


def test_the_kernel_is_gaussian():
    f, _ = blobs(3, 2)
    torch.testing.assert_close(kernel(f, f), (-(torch.cdist(f, f) ** 2)).exp(), rtol=1e-4, atol=1e-5)


@pytest.fixture
def flat(tmp_path):
    """Images of two classes in one folder, a broken one and a copy among them."""
    folder = save_photos(tmp_path / "made", (40, 36), ("cat", "dog"), labels=6, unlabeled=0, test=2)
    photos = tmp_path / "photos"
    photos.mkdir()
    for file in sorted((folder / "labeled").rglob("*.png")):
        (photos / f"{file.parent.name}-{file.name}").write_bytes(file.read_bytes())
    (photos / "copy.png").write_bytes(next(photos.glob("cat-*.png")).read_bytes())
    (photos / "broken.png").write_bytes(b"nothing")
    (folder / "test").rename(photos / "test")
    return photos


def test_broken_files_copies_and_test_images_are_never_chosen(flat):
    found = suggest_first(flat, 40, "cpu", quiet=True)
    names = [row.path.name for row in found.rows]
    assert len(names) == len(set(names)) == found.images == 12
    assert "broken.png" not in names
    assert all(row.path.parent == flat for row in found.rows)
    assert any("broken.png" in problem for problem in found.problems)
    assert ("copy.png" in names) + (next(flat.glob("cat-*.png")).name in names) == 1


def test_from_a_folder_without_labels_to_a_model(flat, capsys, monkeypatch):
    table = flat / "labels.csv"
    words = ["suggest", "--data", str(flat), "-n", "8", "-o", str(table), "--device", "cpu"]
    assert main(words) == 1, "a broken file is told"
    assert "npmatch train --data" in capsys.readouterr().out
    rows = list(csv.DictReader(table.open()))
    assert [row["label"] for row in rows] == [""] * 8
    for row in rows:
        row["label"] = row["path"].split("-")[0].replace("copy.png", "cat")
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)

    assert main([*words[:3], "-n", "2", *words[5:]]) == 1
    more = list(csv.DictReader(table.open()))
    assert [row["label"] for row in more] == [row["label"] for row in rows] + ["", ""], "labels that people gave stay"
    assert {row["path"] for row in rows}.isdisjoint(row["path"] for row in more[8:])

    settings = {"training.iterations": 2, "training.batch": 4, "backbone.input_size": 32, "backbone.cached_views": 1}
    run = npmatch.fit(data=flat, out=flat.parent / "run", device="cpu", overrides=settings, quiet=True)
    split = json.loads((run.folder / "split.json").read_text())
    assert split["counts"]["labeled"] == 8
    assert run.records()[-1]["n"] == 4


def test_other_tables_are_not_replaced(flat, tmp_path, capsys):
    out = tmp_path / "notes.csv"
    out.write_text("path,label,reason\na.png,cat,mine\n")
    assert main(["suggest", "--data", str(flat), "-o", str(out), "--device", "cpu"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert "mine" in out.read_text()


def test_nothing_to_choose_from_is_an_error(tmp_path):
    with pytest.raises(NPMatchError, match="no unlabelled image"):
        suggest_first(tmp_path, 5, "cpu")
    with pytest.raises(NPMatchError, match="1 or more"):
        suggest_first(tmp_path, 0, "cpu")


def test_without_a_run_a_folder_is_needed(capsys):
    assert main(["suggest"]) == 2
    assert "--data DIR" in capsys.readouterr().err
