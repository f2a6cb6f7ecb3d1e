"""check-data on a folder with every kind of damage, and on small folders with one problem each."""

import json
import shutil

import pytest
import torch

from few_photos import save_photo, save_photos
from messy import make_messy
from npmatch.cli import main
from npmatch.cli.data import printable
from npmatch.data import decode_image
from npmatch.data.check import list_data
from npmatch.data.check.check import check_data, is_odd_name
from npmatch.data.check.findings import KINDS
from npmatch.errors import NPMatchError


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    return make_messy(tmp_path_factory.mktemp("messy") / "photos")


@pytest.fixture(scope="module")
def small_chunks():
    """Several chunks of few files, as a single one is inspected without a worker process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npmatch.data.check.inspection.CHUNK", 8)
        yield


@pytest.fixture(scope="module")
def report(messy, small_chunks):
    return check_data(list_data(messy.root), workers=2)


@pytest.fixture
def photos(tmp_path):
    """Two classes with four labelled images and a test image each, and six unlabelled images, all different."""
    return save_photos(tmp_path / "photos", (32, 24), classes=("cat", "dog"), unlabeled=6)


def check(path, **options):
    return check_data(list_data(path), workers=0, **options)


def test_every_damaged_file_is_reported(messy, report):
    assert len(messy.damage) >= 20
    for damage, entry in messy.damage.items():
        if entry["reported_as"] == "sizes":
            assert all(low < median < high for low, median, high in report.sizes.values())
            continue
        missed = set(entry["files"]) - set(report.names(entry["reported_as"]))
        assert entry["files"], damage
        assert not missed, damage


def test_no_undamaged_file_is_left_out(messy, report):
    damaged = {name for entry in messy.damage.values() for name in entry["files"]}
    assert {file.path for file in report.quarantine} <= damaged
    usable = [kind for kind, about in KINDS.items() if about.level != "left out"]
    fine = {n for entry in messy.damage.values() if entry["reported_as"] in usable for n in entry["files"]}
    assert not {file.path for file in report.quarantine} & fine
    assert not report.faults
    assert all(file.detail for file in report.quarantine)


def test_class_names_that_look_alike_are_reported_together(tmp_path):
    alike = ["Cat", "cat", "cat ", "caf\u00e9", "cafe\u0301"]
    report = check(save_photos(tmp_path / "photos", classes=(*alike, "dog"), unlabeled=2))
    (finding,) = [finding for finding in report.findings if finding.kind == "similar-classes"]
    assert sorted(map(sorted, finding.groups)) == sorted(map(sorted, (alike[:3], alike[3:])))
    assert check(save_photos(tmp_path / "others", classes=("cat", "cats"), unlabeled=2)).names("similar-classes") == []


def test_the_command_line_prints_tables_or_only_json(messy, report, capsys):
    assert main(["check-data", str(messy.root), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["quarantine"] == [file._asdict() for file in report.quarantine]
    assert err == ""
    assert main(["check-data", str(messy.root)]) == 0
    out = capsys.readouterr().out
    assert "training would run, leaving out" in out
    for file in report.quarantine:
        assert file.kind in out
    assert printable("one\ntwo \udcff\x1b é") == "one\\ntwo \\xff\\x1b é"
    assert main(["check-data", str(messy.root), "--labels", "3"]) == 1
    assert "class '9': 1 labelled image(s) that can be used, but 3 needed" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["check-data", "nowhere"], ["check-data"], ["check-data", "text.txt"]])
def test_bad_usage_is_exit_code_2(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("path,label")
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1


def test_an_undamaged_folder_has_no_findings(photos):
    report = check(photos)
    assert (report.findings, report.quarantine, report.faults) == ([], [], [])
    assert report.images == {"labeled": 8, "unlabeled": 6, "test": 2}
    assert report.labels == {name: {"labeled": 4, "test": 1} for name in ("cat", "dog")}
    assert report.sizes == {"width": [32, 32, 32], "height": [24, 24, 24]}
    assert (report.modes, report.formats) == ({"RGB": 16}, {"PNG": 16})


def test_training_copies_of_test_images_are_left_out_and_the_test_images_stay(photos):
    shutil.copy(photos / "test/cat/0.png", photos / "labeled/dog/leak.png")
    shutil.copy(photos / "test/cat/0.png", photos / "unlabeled/leak.png")
    report = check(photos)
    assert {file.path for file in report.quarantine} == {"labeled/dog/leak.png", "unlabeled/leak.png"}
    assert {file.kind for file in report.quarantine} == {"leak"}
    group = ["labeled/dog/leak.png", "unlabeled/leak.png", "test/cat/0.png"]
    assert [finding.groups for finding in report.findings] == [[group], [group]]
    assert [finding.kind for finding in report.findings] == ["leak", "two-labels"]


def test_harmless_copies_are_kept(photos):
    shutil.copy(photos / "labeled/cat/0.png", photos / "unlabeled/copy.png")
    report = check(photos)
    assert report.quarantine == []
    assert report.names("duplicate") == ["labeled/cat/0.png", "unlabeled/copy.png"]
    assert not report.names("near-duplicate"), "equal files are not also reported as look-alikes"


def test_a_class_without_a_usable_image_is_a_fault(photos):
    for path in (photos / "labeled/cat").iterdir():
        path.write_bytes(b"")
    report = check(photos)
    assert [fault.split(":")[0] for fault in report.faults] == ["class 'cat'"]
    assert main(["check-data", str(photos)]) == 1
    shutil.rmtree(photos / "labeled/cat")
    (photos / "labeled/cat").mkdir()
    report = check(photos)
    assert report.faults == [f"{photos / 'labeled/cat'}: no image in this class folder; add some or remove the folder"]
    shutil.rmtree(photos / "labeled")
    assert "no such folder" in check(photos).faults[0]


def test_imbalance_and_missing_parts(photos, write_image):
    for seed in range(16):
        write_image(photos / f"labeled/cat/more{seed}.png", 100 + seed, 32, 24)
    shutil.rmtree(photos / "unlabeled")
    shutil.rmtree(photos / "test")
    report = check(photos)
    assert report.names("imbalance") == []
    for i in range(1, 4):
        (photos / f"labeled/dog/{i}.png").unlink()
    report = check(photos)
    assert report.names("imbalance") == ["dog (1)", "cat (20)"]
    assert report.names("few-labels") == ["dog"]
    assert {"no-unlabeled", "no-test"} <= {finding.kind for finding in report.findings}


def test_a_csv_with_missing_files(photos):
    table = photos / "table.csv"
    rows = [
        "labeled/cat/0.png,cat,",
        "labeled/dog/0.png,dog,",
        "gone.png,cat,",
        "unlabeled/0.png,,",
        "test/cat/0.png,cat,test",
    ]
    table.write_text("path,label,split\n" + "\n".join(rows))
    report = check(table)
    assert [(file.path, file.kind) for file in report.quarantine] == [("gone.png", "missing")]
    assert report.faults == []
    assert report.images == {"labeled": 3, "unlabeled": 1, "test": 1}
    table.write_text("path,label\nlabeled/cat/0.png,cat\n")
    assert "1 class(es)" in check(table).faults[0]
    table.write_text("file\nx\n")
    with pytest.raises(NPMatchError, match="it must name path,label"):
        check(table)


@pytest.mark.parametrize("name", ["a b.png", "-a.png", "a\nb.png", "it's.png", "caf\u0065\u0301.png", "\udcff.png"])
def test_odd_names(name):
    assert is_odd_name(f"unlabeled/{name}")


@pytest.mark.parametrize("name", ["IMG_0001.JPG", "café.png", "日本.png", "a-b.1.png", "x (2).png".replace(" ", "")])
def test_plain_names(name):
    assert not is_odd_name(f"labeled/a b/{name}")


def test_a_name_that_is_not_utf8_survives_json(photos, write_image, capsys):
    write_image(photos / "unlabeled" / "\udcff.png", 99)
    assert main(["check-data", str(photos), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["names"] == ["unlabeled/\udcff.png"]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_check_hands_over_the_images_as_training_decodes_them(messy, report, small_chunks, workers):
    listing = list_data(messy.root)
    pixels = torch.full((len(listing.files), 3, 24, 24), 7, dtype=torch.uint8)
    handing_over = check_data(listing, workers=workers, pixels=pixels)
    assert handing_over.quarantine == report.quarantine
    broken = {file.path for file in report.quarantine if file.kind not in ("leak", "two-labels")}
    for file, image in zip(listing.files, pixels, strict=True):
        if file.name in broken:
            assert (image == 7).all()
        else:
            assert torch.equal(image, decode_image(listing.path(file), 24)), file.name


def test_progress_counts_every_file(photos):
    seen = []
    check(photos, advance=seen.append)
    assert sum(seen) == 16


def test_pictures_much_smaller_than_the_others_are_found(tmp_path):
    for i, size in enumerate([(40, 36), (36, 50), (37, 38), (9, 200), (8, 8)]):
        save_photo(tmp_path / "unlabeled" / f"{i}.png", i, size)
    report = check_data(list_data(tmp_path))
    assert report.names("tiny") == ["unlabeled/4.png"], "a quarter of the usual shorter side is not yet tiny"
