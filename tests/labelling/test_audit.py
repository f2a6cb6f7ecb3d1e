"""Audits from the command line: images are drawn by a stored rule, measured exactly, and kept out of training."""

import csv
import json
import shutil

import numpy as np
import pytest
from scipy.stats import binomtest

import npmatch
from few_photos import WORDS, save_photo, save_photos
from npmatch.cli import main
from npmatch.errors import NPMatchError
from npmatch.labelling.audit import Auditor
from npmatch.labelling.audit_answers import AuditAnswers
from npmatch.labelling.folder_labels import FolderLabels
from npmatch.labelling.tables import suggest_for_run
from npmatch.runs.audit_record import AuditRecord, kept_for_audits
from npmatch.runs.audit_result import results_of
from npmatch.runs.open import open_run_data
from npmatch.web.labelling import Labelling


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a folder of 2 classes with 40 unlabelled images, and 12 images elsewhere."""
    place = tmp_path_factory.mktemp("audit")
    save_photos(place / "photos", unlabeled=40)
    for number in range(12):
        save_photo(place / "new" / f"{number}.png", seed=number)
    overrides = {**WORDS, "data.validation": 0.25}
    npmatch.fit(data=place / "photos", out=place / "run", overrides=overrides, quiet=True, device="cpu")
    return place


@pytest.fixture
def place(trained, tmp_path, monkeypatch):
    """A copy of it to write into, which is the working directory."""
    for name in ("photos", "new", "run"):
        shutil.copytree(trained / name, tmp_path / name)
    config = (tmp_path / "run/config.yaml").read_text().replace(str(trained), str(tmp_path))
    (tmp_path / "run/config.yaml").write_text(config)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def audit(*words):
    return main(["audit", "run", *map(str, words)])


def answered(capsys, *words):
    assert audit(*words, "--json") == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def refused(capsys, *words):
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def drawn_rows(file):
    with open(file, newline="") as table:
        return list(csv.DictReader(table))


def fill(file, wrong=(), out=None, empty=()):
    """Fills in a table with the model's own answers, except the rows `wrong`."""
    predicted = {draw.path: draw.predicted for one in AuditRecord.load("run").audits for draw in one.draws}
    rows = drawn_rows(file)
    for number, row in enumerate(rows):
        right = predicted[row["path"]]
        row["label"] = "" if number in empty else right if number not in wrong else "ab".replace(right, "")
    with open(out or file, "w", newline="") as table:
        writer = csv.DictWriter(table, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return out or file


def test_a_plain_audit_gives_the_exact_interval(place, capsys):
    assert audit("-n", 20, "-o", "check.csv") == 0
    rows = drawn_rows("check.csv")
    assert len({row["path"] for row in rows}) == 20
    assert "predicted" not in rows[0], "the model's answer would sway whoever labels"
    found = answered(capsys, fill("check.csv", wrong=(3, 7)))
    exact = binomtest(2, 20).proportion_ci(0.9, method="exact")
    assert (found["overall"]["low"], found["overall"]["high"]) == pytest.approx((exact.low, exact.high))
    assert (found["overall"]["errors"], found["overall"]["n"], found["images"]) == (2, 20, 40)
    assert answered(capsys)["audits"] == [found]


def test_classes_and_kept_answers_are_measured_too(place, capsys):
    audit("-n", 30, "-o", "check.csv")
    found = answered(capsys, fill("check.csv", wrong=range(4)), "--abstain", 0.7)
    draws = AuditRecord.load("run").audits[0].draws
    for name, rate in found["classes"].items():
        of_class = [draw for draw in draws if draw.label == name]
        assert rate["n"] == len(of_class) >= 5
        assert rate["errors"] == sum(draw.label != draw.predicted for draw in of_class)
    assert found["abstain"] == 0.7
    assert found["kept"]["n"] <= 30


def test_the_audit_goes_on_without_repetition(place, capsys):
    audit("-n", 10, "-o", "one.csv")
    audit("-n", 15, "-o", "two.csv")
    paths = [row["path"] for name in ("one.csv", "two.csv") for row in drawn_rows(name)]
    assert len(set(paths)) == 25
    shutil.rmtree("run/checkpoints")
    again = Auditor("run")
    audit_25, _ = again.draw(AuditRecord(), 25, False, 0)
    assert [draw.path for draw in audit_25.draws] == paths, "in one go, the same images are drawn"
    assert [draw.q for draw in audit_25.draws] == pytest.approx([1 / (40 - m) for m in range(25)])
    assert answered(capsys, fill("one.csv"), fill("two.csv"))["overall"]["n"] == 25
    assert audit("-n", 100, "-o", "three.csv") == 0
    assert len(drawn_rows("three.csv")) == 15, "all that are left"
    assert "all 40 images have been drawn" in refused(capsys, "audit", "run", "-n", 1, "-o", "four.csv")


def test_looks_in_between_are_paid_for(place, capsys):
    audit("-n", 10, "-o", "one.csv")
    first = answered(capsys, fill("one.csv"), "--interim")
    assert (first["level"], first["joint_level"]) == pytest.approx((0.95, 0.95))
    assert answered(capsys, "one.csv", "--interim") == first, "the same labels again are no second look"
    audit("-n", 10, "-o", "two.csv")
    last = answered(capsys, fill("two.csv"))
    assert (last["level"], last["joint_level"], last["overall"]["n"]) == pytest.approx((0.95, 0.9, 20))
    audit("-n", 10, "-o", "three.csv")
    unplanned = answered(capsys, fill("three.csv"))
    assert (unplanned["level"], unplanned["joint_level"]) == pytest.approx((0.95, 0.85))


def test_a_weighted_audit_is_unbiased_and_says_what_a_plain_one_would_give(place, capsys):
    audit("-n", 20, "-o", "check.csv", "--weighted")
    capsys.readouterr()
    assert audit(fill("check.csv", wrong=(1,))) == 0
    assert "drawn at random would give about" in capsys.readouterr().out
    found = answered(capsys, "check.csv")
    one = AuditRecord.load("run").audits[0]
    n, m = 40, np.arange(1, 21)
    q, s, wrong = (np.array([getattr(draw, key) for draw in one.draws]) for key in ("q", "doubt", "label"))
    v = 1 + (n - 20) / (n - m) * (1 / ((n - m + 1) * q) - 1)
    loss = wrong != np.array([draw.predicted for draw in one.draws])
    assert found["overall"]["error"] == pytest.approx(one.mean_doubt + (v * (loss - s)).mean())
    assert found["overall"]["low"] <= found["overall"]["high"]
    assert found["joint_level"] == found["level"] == pytest.approx(0.9)


def test_none_of_these_is_an_error_of_the_model(place, capsys):
    audit("-n", 5, "-o", "check.csv")
    rows = drawn_rows(fill("check.csv"))
    with open("check.csv", "w") as table:
        table.write("path,label\n" + "".join(f"{row['path']},{row['label']}\n" for row in rows[1:]))
        table.write(f"{rows[0]['path']}, none of these \n")
    assert answered(capsys, "check.csv")["overall"]["errors"] == 1


def test_a_new_folder_can_be_audited(place, capsys):
    (place / "new/broken.png").write_text("no image")
    assert audit("-n", 6, "-o", "check.csv", "--unlabeled", "new") == 1
    assert "broken.png" in capsys.readouterr().err
    found = answered(capsys, fill("check.csv"))
    assert found["images"] == 12
    assert found["folder"] == str(place / "new")
    (place / "new/11.png").unlink()
    assert "have changed since the audit began (12 then, 11 now)" in refused(
        capsys, "audit", "run", "-n", 2, "-o", "more.csv", "--unlabeled", "new"
    )


def test_label_studio_tasks_hold_no_proposal_and_their_export_is_read(place, capsys):
    assert audit("-n", 4, "--label-studio", "tasks.json") == 0
    tasks = json.loads((place / "tasks.json").read_text())
    assert all(task.keys() == {"data"} for task in tasks)
    assert "none of these" in (place / "tasks.xml").read_text()
    export = [{"image": "", "path": task["data"]["path"], "label": "a"} for task in tasks]
    (place / "export.json").write_text(json.dumps(export))
    assert answered(capsys, "export.json")["overall"]["n"] == 4


def test_incomplete_tables_are_refused(place, capsys):
    audit("-n", 10, "-o", "check.csv")
    assert "no label is filled in" in refused(capsys, "audit", "run", "check.csv")
    fill("check.csv", out="part.csv", empty=(2, 5))
    assert "2 of the images drawn so far have no label" in refused(capsys, "audit", "run", "part.csv")
    assert AuditRecord.load("run").audits[0].labelled == []
    audit("-n", 5, "-o", "more.csv")
    assert "10 of the images" in refused(capsys, "audit", "run", fill("more.csv"))


def test_tables_of_other_audits_are_refused(place, capsys):
    assert "no image was drawn" in refused(capsys, "audit", "run", write_rows("x.csv", ("a.png", "a")))
    audit("-n", 5, "-o", "check.csv")
    (place / "check.csv").write_text((place / "check.csv").read_text() + "other.png,a,\n")
    assert "other.png was not drawn by this audit" in refused(capsys, "audit", "run", "check.csv")
    assert "unknown class 'c'" in refused(
        capsys, "audit", "run", write_rows("x.csv", (drawn_rows("check.csv")[0]["path"], "c"))
    )
    record = json.loads((place / "run/audit.json").read_text())
    record["audits"][0]["model"] = "another"
    (place / "run/audit.json").write_text(json.dumps(record))
    row = drawn_rows("check.csv")[0]["path"], "a"
    assert "another model than the present one" in refused(capsys, "audit", "run", write_rows("x.csv", row))


def write_rows(path, *rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    return path


def test_peoples_work_is_not_overwritten_and_a_lost_table_is_written_again(place, capsys):
    audit("-n", 5, "-o", "check.csv")
    before = drawn_rows("check.csv")
    assert audit("-o", "again.csv") == 0
    assert drawn_rows("again.csv") == before
    fill("check.csv")
    assert "exists already" in refused(capsys, "audit", "run", "-n", 5, "-o", "check.csv")
    assert len(AuditRecord.load("run").audits[0].draws) == 5
    assert "belongs to the run" in refused(capsys, "audit", "run", "-n", 5, "-o", "run/labels.csv")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-n", 5), "give -o FILE.csv"),
        (("-n", 0, "-o", "x.csv"), "draw 1 image or more"),
        (("-o", "x.txt"), "ends in .csv"),
        (("x.csv", "--release", "x.csv"), "one at a time"),
        (("missing.csv",), "cannot be read"),
    ],
)
def test_bad_input_is_one_line(place, capsys, words, message):
    assert message in refused(capsys, "audit", "run", *words)


def test_whatever_a_record_holds_is_shown_or_refused(place, capsys):
    audit("-n", 3, "-o", "check.csv", "--weighted")
    audit(fill("check.csv", wrong=(1,)))
    whole = (place / "run/audit.json").read_text()
    odd = [None, 0, -1, 2, 1e308, "x", "\x1b[2J", [], {}, True]
    tree = json.loads(whole)["audits"][0]
    for part, keys in ((("draws", 0), tree["draws"][0]), (("looks", 0), tree["looks"][0]), ((), tree)):
        for key in keys:
            for value in odd:
                changed = json.loads(whole)
                node = changed["audits"][0]
                for step in part:
                    node = node[step]
                node[key] = value
                (place / "run/audit.json").write_text(json.dumps(changed))
                try:
                    found = results_of("run")
                except NPMatchError:
                    found = []
                assert all(0 <= one.overall.low <= one.overall.high <= 1 for one in found)


def test_a_damaged_record_is_named(place, capsys):
    (place / "run/audit.json").write_text('{"audits": [{"id": 3}]}')
    assert "audit.json: not what npmatch audit wrote" in refused(capsys, "audit", "run", "-n", 5, "-o", "x.csv")


def test_audited_images_stay_out_of_training_until_they_are_released(place, capsys):
    audit("-n", 12, "-o", "check.csv")
    fill("check.csv")
    names = kept_for_audits("run")
    assert len(names) == 12
    # Neither `suggest` nor the page offers them, and `label` refuses them, also as copies elsewhere.
    assert not names & {row.name for row in suggest_for_run("run", 40, "random", device="cpu").rows}
    data = open_run_data("run")
    assert len(Labelling(data).pool) == 40 - 12
    assert "kept out of training" in refused(capsys, "label", "run", "check.csv")
    shutil.copy(drawn_rows("check.csv")[0]["path"], "copy.png")
    assert "copy.png, which has the content of" in refused(
        capsys, "label", "run", write_rows("x.csv", ("copy.png", "a"))
    )
    # Nor does a run that starts from this one, or a new run on the same folder, train on their labels.
    name = min(names)
    write_rows("run/labels.csv", (name, "a"))
    assert "kept out of training" in refused(capsys, "train", "--resume-from", "run", "--out", "two")
    (place / "run/labels.csv").unlink()
    shutil.copy("check.csv", "photos/labels.csv")
    assert "was drawn for an audit" in refused(capsys, "train", "--data", "photos", "--out", "three")
    # Released by name, they are images like any others.
    (place / "photos/labels.csv").unlink()
    assert audit("--release", "check.csv") == 0
    assert kept_for_audits("run") == set()
    assert not (place / "photos/audited.csv").exists()
    assert main(["label", "run", "check.csv"]) == 0
    assert len(open_run_data("run").book().labels) == 12


def test_the_audits_of_earlier_rounds_count(place, capsys):
    audit("-n", 3, "-o", "check.csv")
    overrides = {"training.iterations": 2}
    npmatch.fit(resume_from="run", out="two", overrides=overrides, quiet=True, device="cpu")
    fill("check.csv")
    assert kept_for_audits("two") == kept_for_audits("run")
    assert "kept out of training" in refused(capsys, "label", "two", "check.csv")


def test_answers_one_by_one_count_once_all_drawn_together_are_answered(place, capsys):
    audit("-n", 10, "-o", "one.csv")
    answers = AuditAnswers("run")
    predicted = {draw.name: draw.predicted for draw in answers.audit.draws}
    answers.change(dict(list(predicted.items())[:9]))
    assert (len(answers.labels), answers.audit.labelled) == (9, [])
    assert "audits" in answered(capsys)
    assert AuditRecord.load("run").audits[0].looks == [], "nobody has looked at an unfinished audit"
    audit("-n", 5, "-o", "two.csv")
    answers.change({draw.name: draw.predicted for draw in answers.audit.draws[10:]})
    assert answers.audit.labelled == [], "those drawn first are not all answered"
    answers.change({draw.name: "none of these" for draw in answers.audit.draws[9:10]})
    found = answered(capsys, "--interim")["audits"][0]
    assert (found["overall"]["errors"], found["overall"]["n"], found["level"]) == (1, 15, pytest.approx(0.95))
    assert answered(capsys)["audits"] == [found], "the command without a table looks only once at the same answers"
    with pytest.raises(NPMatchError, match="has been shown"):
        answers.change({next(iter(predicted)): None})
    for wrong, message in (({"other.png": "a"}, "was not drawn"), ({"other.png": "z"}, "unknown class 'z'")):
        with pytest.raises(NPMatchError, match=message):
            answers.change(wrong)


def test_images_that_got_a_label_in_the_folder_are_not_drawn(place, capsys):
    names = {f"unlabeled/{path.name}" for path in list((place / "photos/unlabeled").iterdir())[:30]}
    write_rows("photos/labels.csv", *((name, "a") for name in names))
    audit("-n", 40, "-o", "check.csv")
    drawn = {draw.name for draw in AuditRecord.load("run").audits[0].draws}
    assert len(drawn) == 10
    assert not drawn & names


def test_released_images_of_no_class_give_no_label(place, capsys):
    audit("-n", 5, "-o", "check.csv")
    rows = drawn_rows(fill("check.csv"))
    write_rows("check.csv", (rows[0]["path"], "none of these"), *((row["path"], row["label"]) for row in rows[1:]))
    assert audit("check.csv") == audit("--release", "check.csv") == 0
    assert main(["label", "run", "check.csv"]) == 0
    assert len(open_run_data("run").book().labels) == 4
    assert main(["label", "photos", "check.csv"]) == 0
    said = FolderLabels(place / "photos").labels.values()
    assert sorted(answer.set_aside for answer in said) == ["", "", "", "", "none of these"]
