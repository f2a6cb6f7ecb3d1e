"""The page of a folder, without a browser: labels, classes, several people, training, results, access."""

import csv
import io
import shutil

import pytest
from fastapi.testclient import TestClient
from folder_page import KINDS, kind_of, save_folder, save_picture, train_in_seconds
from PIL import Image
from served_page import wait_until

from npmatch.cli import main
from npmatch.data.sources.audited import read_audited
from npmatch.data.sources.label_table import Answer
from npmatch.labelling.folder_labels import FolderLabels
from npmatch.runs.estimate import estimate_error
from npmatch.web.access import Access
from npmatch.web.project import Project, runs_beside
from npmatch.web.project_app import make_project_app

TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory):
    """Features are computed once for all tests of this file: they are kept beside the folder."""
    folder = save_folder(tmp_path_factory.mktemp("folder") / "photos", test=2)
    (folder / "copy.png").write_bytes((folder / "000.png").read_bytes())
    (folder / "broken.png").write_bytes(b"nothing")
    Image.new("RGB", (5, 5), "white").save(folder / "tiny.png")
    return folder


@pytest.fixture
def folder(shared_folder, tmp_path):
    yield shared_folder
    for name in ("labels.csv", ".labels.csv.lock", "audited.csv"):
        (shared_folder / name).unlink(missing_ok=True)
    (runs_beside(shared_folder) / "classes.json").unlink(missing_ok=True)


@pytest.fixture
def project(folder):
    return Project(folder, device="cpu")


@pytest.fixture
def client(project):
    with TestClient(make_project_app(project, Access()), base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: project.progress["stage"] == "ready" or project.problem)
        assert project.problem is None
        yield client


def todo(client, **query):
    return client.get("/api/images", params={"count": 200, **query}).json()["images"]


def label(client, image, **answer):
    return client.post("/api/labels", json={"image": image["image"], **answer}).json()


def label_by_kind(client, number):
    for image in [image for image in todo(client) if image["name"] != "tiny.png"][:number]:
        assert label(client, image, label=kind_of(image["name"]))["taken"]


def table(folder):
    return list(csv.DictReader((folder / "labels.csv").open()))


def test_the_start_says_what_is_wrong_and_offers_neither_copies_nor_broken_files(client):
    found = {finding["kind"]: finding for finding in client.get("/api/findings").json()}
    assert found["not-an-image"]["images"][0]["name"] == "broken.png"
    assert {image["name"] for image in found["duplicate"]["images"]} == {"000.png", "copy.png"}
    assert [image["name"] for image in found["tiny"]["images"]] == ["tiny.png"]
    names = [image["name"] for image in todo(client) if image["name"] != "tiny.png"]
    assert len(names) == 30
    assert "broken.png" not in names
    assert not any(name.startswith("test/") for name in names)
    assert {kind_of(name) for name in names[:3]} == set(KINDS), "the first three are representative"
    assert client.get(f"/api/images/{todo(client)[0]['image']}").headers["content-type"].startswith("image/")
    assert client.get("/api/images/9999").status_code == 404


def test_answers_are_in_the_folders_table_at_once(client, folder):
    one, two, three = todo(client)[:3]
    label(client, one, label="red")
    label(client, two, aside="broken")
    answer = label(client, three, aside="none of these")
    assert table(folder)[0] == {"path": one["name"], "label": "red", "answer": ""}
    assert [row["answer"] for row in table(folder)] == ["", "broken", "none of these"]
    assert {key: answer["counts"][key] for key in ("labelled", "aside", "todo")} == {
        "labelled": 1,
        "aside": 2,
        "todo": 28,
    }
    label(client, two, seen={"aside": "broken"}, label="blue")
    assert [row["label"] for row in table(folder)] == ["red", "blue", ""]
    client.post("/api/undo", json={})
    assert table(folder)[1]["answer"] == "broken"


def test_what_a_terminal_writes_is_seen_and_kept(client, folder):
    one, two = todo(client)[:2]
    label(client, one, label="red")
    with (folder / "labels.csv").open("a") as file:
        file.write(f"{two['name']},green\n")
    assert client.get("/api/status").json()["classes"] == ["red", "green"]
    refused = label(client, two, label="blue")
    assert refused["taken"] is False, "somebody else has answered since the page was loaded"
    assert refused["changed"][0]["given"] == "green"
    FolderLabels(folder).set(one["name"], Answer("green"))
    assert client.post("/api/undo", json={}).json()["changed"] == [], "nothing of the change is left to undo"
    assert [row["label"] for row in table(folder)] == ["green", "green"]


def test_undo_takes_back_only_ones_own_changes(client, folder):
    one, two = todo(client)[:2]
    label(client, one, label="red", who="anna")
    label(client, two, label="blue", who="ben")
    assert client.post("/api/undo", json={"who": "anna"}).json()["changed"][0]["name"] == one["name"]
    assert [row["path"] for row in table(folder)] == [two["name"]]
    assert client.post("/api/undo", json={"who": "anna"}).json()["changed"] == []


def test_classes_are_added_renamed_merged_and_removed(client, folder):
    images = todo(client)
    assert client.post("/api/classes", json={"name": "rot"}).json()["classes"] == ["rot"]
    for image in images[:2]:
        label(client, image, label="rot")
    label(client, images[2], label="grün")
    assert client.post("/api/classes", json={"name": "rot", "to": "red"}).json()["classes"] == ["red", "grün"]
    assert [row["label"] for row in table(folder)] == ["red", "red", "grün"]
    assert client.post("/api/classes", json={"name": "grün", "to": "red"}).json()["classes"] == ["red"]
    assert [row["label"] for row in table(folder)] == ["red"] * 3
    client.post("/api/undo", json={})
    assert [row["label"] for row in table(folder)] == ["red", "red", "grün"]
    assert "merge it" in client.post("/api/classes", json={"name": "red", "remove": True}).json()["error"]
    client.post("/api/classes", json={"name": "nobody"})
    assert client.post("/api/classes", json={"name": "nobody", "remove": True}).json()["classes"] == ["red", "grün"]
    for name in ("broken", "none of these", " ", "x" * 101, "a\nb"):
        assert client.post("/api/classes", json={"name": name}).status_code == 422


def test_the_quick_look_guesses_from_the_first_labels_on(client, project, folder):
    assert todo(client)[0]["guess"] is None
    assert client.post("/api/predict", content=(folder / "001.png").read_bytes()).status_code == 422
    label_by_kind(client, 9)
    wait_until(lambda: project.quick_look is not None and len(project.quick_look.pictures) == 9)
    images = [image for image in todo(client) if image["name"] != "tiny.png"]
    right = [image["guess"] == kind_of(image["name"]) for image in images]
    assert sum(right) >= 0.8 * len(right)
    answer = client.post("/api/predict", content=(folder / images[0]["name"]).read_bytes()).json()
    assert answer["classes"][0]["name"] == images[0]["guess"]
    assert answer["classes"][0]["probability"] == pytest.approx(images[0]["confidence"], abs=0.02)
    result = client.get("/api/results").json()
    assert result["basis"] == "folds"
    assert result["images"] == 9


def test_the_surest_guesses_of_a_class_are_accepted_together(client, project, folder):
    label_by_kind(client, 9)
    wait_until(lambda: project.quick_look is not None and len(project.quick_look.pictures) == 9)
    reds = todo(client, predicted="red", surest=True)
    confidence = [image["confidence"] for image in reds]
    assert confidence == sorted(confidence, reverse=True)
    label(client, reds[0], label="green")
    request = {"images": [image["image"] for image in reds[:3]], "label": "red", "who": "anna"}
    assert client.post("/api/accept", json=request).json()["accepted"] == 2, "an answer in the meantime is kept"
    assert len(table(folder)) == 12
    client.post("/api/undo", json={"who": "anna"})
    assert len(table(folder)) == 10


def test_from_labels_to_a_trained_round_and_its_results(client, project, folder, monkeypatch, capsys):
    train_in_seconds(monkeypatch)
    label_by_kind(client, 12)
    assert client.post("/api/training", json={"minutes": 1}).json()["state"] == "running"
    others = (("/api/audit", {"round": "round1", "count": 30}), ("/api/forecast", {"round": "round1"}))
    for path, body in (("/api/training", {"minutes": 1}), *others):
        assert "being trained already" in client.post(path, json=body).json()["error"]
    wait_until(lambda: project.training.describe()["state"] != "running", 120)
    assert project.training.describe()["state"] == "finished", project.training.log.read_text()
    wait_until(lambda: project.model.name == "round1")
    status = client.get("/api/status").json()
    assert status["guesses"]["source"] == "round1"
    assert status["rounds"][0]["labels"] == 12
    assert status["rounds"][0]["scores"]["n"] == 6
    result = client.get("/api/results", params={"round": "round1"}).json()
    assert result["basis"] == "test"
    assert result["low"] <= result["error"] <= result["high"]
    assert sum(pair["count"] for pair in result["confusions"]) == round(result["error"] * 6 / 100)
    assert [row["kept"] for row in result["kept"]] == [1.0, 0.9, 0.8, 0.5]
    assert client.get("/api/test-images/0", params={"round": "round1"}).status_code == 200
    assert client.get("/api/test-images/6", params={"round": "round1"}).status_code == 404
    assert {figure["name"] for figure in client.get("/api/figures").json()} >= {"losses", "risk"}
    answer = client.post("/api/predict", content=(folder / "001.png").read_bytes()).json()
    assert answer["model"] == "round1"
    assert client.get("/api/model.onnx", params={"round": "round1"}).status_code == 422
    assert client.post("/api/export", json={"round": "round1"}).status_code == 200
    assert len(client.get("/api/model.onnx", params={"round": "round1"}).content) > 1000
    assert client.post("/api/export", json={"round": "../photos"}).status_code == 422

    estimate = client.get("/api/estimate", params={"round": "round1"}).json()
    report = estimate_error(runs_beside(folder) / "round1", device="cpu")
    assert (estimate["error"], estimate["source"]) == (pytest.approx(report.error), report.source)
    for wrong in ({"round": "round1", "labels": 99}, {"round": "../photos"}, {}):
        assert client.post("/api/forecast", json=wrong).status_code == 422
    assert client.get("/api/forecast", params={"round": "round1"}).json()["lines"] == []
    assert client.get("/api/forecast.svg", params={"round": "round1"}).status_code == 404
    names = answer_an_audit(client, folder)

    again = Project(folder, device="cpu")  # a restarted server finds labels, rounds, features and answers
    with TestClient(make_project_app(again, Access()), base_url="http://127.0.0.1:8000") as other:
        finish_the_audit(other, folder, names, capsys)
        wait_until(lambda: again.model is not None and again.model.name == "round1")
        assert other.get("/api/status").json()["counts"]["labelled"] == 12
        release_the_audit(other, folder, names)
        choose_a_round(other, again, folder)


def choose_a_round(client, project, folder):
    """Of two rounds and the quick look, the chosen one predicts; without a choice, the newest."""
    shutil.copytree(project.rounds.out / "round1", project.rounds.out / "round2")
    wait_until(lambda: project.model.name == "round2" and project.quick_look is not None)
    content = (folder / "001.png").read_bytes()
    for query, model in (({}, "round2"), ({"round": "round1"}, "round1"), ({"round": ""}, "")):
        assert client.post("/api/predict", params=query, content=content).json()["model"] == model
    assert client.post("/api/predict", params={"round": "../x"}, content=content).status_code == 422


def audit(client, path="", **body):
    return client.post(f"/api/audit{path}", json={"round": "round1", **body}).json()


def audit_images(client, **query):
    return client.get("/api/audit/images", params={"round": "round1", "count": 200, **query}).json()["images"]


def answer_an_audit(client, folder):
    """Draws pictures and answers all but two of them; returns their names."""
    for count in (0, 20, 31, 1000):
        assert "choose one of 30, 60, 100" in audit(client, count=count)["error"]
    for wrong in ({"count": "30"}, {"count": True}, {"count": 30, "seed": 1}, {}):
        assert client.post("/api/audit", json={"round": "round1", **wrong}).status_code == 422
    assert "no such round" in client.post("/api/audit", json={"round": "../x", "count": 30}).json()["error"]
    labelled = {row["path"] for row in table(folder)}
    drawn = audit(client, count=30)
    images = audit_images(client)
    names = {image["name"] for image in images}
    assert drawn["drawn"] == len(names) == drawn["images"], "all that are left, as the command draws them"
    assert not names & labelled, "what has a label by now is not in the pool"
    assert {image[key] for image in images for key in ("guess", "confidence", "entropy", "share")} == {None}
    assert not names & {image["name"] for image in todo(client)}
    assert "kept for an audit" in label(client, images[0], label="red")["error"]
    assert client.post("/api/accept", json={"images": [images[0]["image"]], "label": "red"}).json()["accepted"] == 0
    assert "answer all pictures" in audit(client, "/look")["error"]
    assert "measure the error first" in audit(client, "/release")["error"]

    one, two, three = images[:3]
    audit(client, "/labels", image=one["image"], label="red", who="anna")
    audit(client, "/labels", image=two["image"], aside="none of these", who="ben")
    assert audit(client, "/labels", image=one["image"], label="blue", who="ben")["taken"] is False
    assert "unknown class 'white'" in audit(client, "/labels", image=three["image"], label="white")["error"]
    assert "unknown class 'broken'" in audit(client, "/labels", image=three["image"], aside="broken")["error"]
    assert audit(client, "/labels", image=three["image"], skip=True)["counts"]["labelled"] == 2
    undone = audit(client, "/undo", who="anna")
    assert (undone["changed"][0]["name"], undone["changed"][0]["given"]) == (one["name"], None)
    assert audit_images(client, view="labelled")[0]["aside"] == "none of these"
    audit(client, "/labels", image=two["image"], seen={"aside": "none of these"})
    for image in images[2:]:
        answer_truly(client, image)
    return names


def truth(image):
    is_kind = image["name"][:3].isdigit()
    return {"label": kind_of(image["name"])} if is_kind else {"aside": "none of these"}


def answer_truly(client, image):
    assert audit(client, "/labels", image=image["image"], **truth(image))["taken"]


def finish_the_audit(client, folder, names, capsys):
    before = (folder / "labels.csv").read_bytes()
    left = audit_images(client)
    assert len(left) == 2
    for image in left:
        answer_truly(client, image)
    state = client.get("/api/audit", params={"round": "round1"}).json()
    assert (state["can_look"], state["lines"], state["measured"]) == (True, [], None)
    found = audit(client, "/look", interim=True)
    assert found["measured"]["level"] == pytest.approx(0.95)
    assert found["next_levels"] == pytest.approx([0.95, 0.9])
    assert "has been shown" in audit(client, "/labels", image=left[0]["image"], seen=truth(left[0]))["error"]
    assert audit(client, "/undo")["changed"] == []
    capsys.readouterr()
    assert main(["audit", str(runs_beside(folder) / "round1")]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[: len(found["lines"])] == found["lines"]
    assert all(cell in printed for row in found["rows"] for cell in row)
    assert (folder / "labels.csv").read_bytes() == before, "answers of an audit are no labels"
    rows = csv.DictReader(io.StringIO(client.get("/api/audit/check.csv", params={"round": "round1"}).text))
    assert {row["path"]: row["label"] for row in rows}.keys() == {str(folder / name) for name in names}


def release_the_audit(client, folder, names):
    assert read_audited(folder).keys() == names
    assert audit(client, "/release")["labels"] == len(names)
    assert read_audited(folder) == {}
    assert len(table(folder)) == 12 + len(names)


def test_other_pictures_are_taken_in_without_a_restart(shared_folder, tmp_path):
    folder = shutil.copytree(shared_folder, tmp_path / "photos")
    features = runs_beside(shared_folder) / ".features"
    if features.is_dir():
        shutil.copytree(features, runs_beside(folder) / ".features")
    project = Project(folder, device="cpu")
    with TestClient(make_project_app(project, Access()), base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: project.progress["stage"] == "ready")
        label_by_kind(client, 9)
        wait_until(lambda: project.quick_look is not None and len(project.quick_look.pictures) == 9)
        before = {image["name"]: image["image"] for image in todo(client, view="all")}
        assert client.post("/api/look-again", json={}).json() == {"new": 0, "gone": 0}
        save_picture(folder / "900.png", "red", 900)
        (folder / "copy of 900.png").write_bytes((folder / "900.png").read_bytes())
        gone = todo(client)[-1]["name"]
        (folder / gone).unlink()
        assert client.post("/api/look-again", json={}).json() == {"new": 2, "gone": 1}
        wait_until(lambda: project.num_checks == 2 and project.progress["stage"] == "ready")
        wait_until(lambda: project.desk.guesses.known[project.desk.position_of("900.png")])
        images = {image["name"]: image for image in todo(client, view="all")}
        assert images.keys() == before.keys() - {gone} | {"900.png"}, "a second copy is not offered"
        assert {name: image["image"] for name, image in images.items() if name in before}.items() <= before.items()
        assert images["900.png"]["guess"] == "red"
        assert client.get("/api/status").json()["counts"]["images"] == len(project.desk.names) - 1
        assert label(client, images["900.png"], label="red")["taken"]
        assert client.get(f"/api/images/{images['900.png']['image']}").status_code == 200


@pytest.mark.parametrize(
    "request_body",
    [
        {"minutes": 2},
        {"minutes": "1"},
        {"minutes": 1, "algorithm": "evil.module:Class"},
        {"minutes": 1, "out": "/tmp/x"},
        {"minutes": 1, "overrides": ["seed=1"]},
        {},
        {"minutes": True},
    ],
)
def test_settings_of_a_training_are_a_closed_list(client, project, request_body):
    assert client.post("/api/training", json=request_body).status_code == 422
    assert project.training.job() is None or project.training.job().run == "round1"
    assert project.training.running() is None


def test_nobody_trains_without_the_token_or_from_another_site(project, monkeypatch):
    started = []
    monkeypatch.setattr(type(project.training), "start", lambda self, minutes: started.append(minutes))
    app = make_project_app(project, Access(token=TOKEN))
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        posts = ["/api/training", "/api/training/stop", "/api/training/resume", "/api/labels", "/api/accept"]
        posts += ["/api/classes", "/api/undo", "/api/export", "/api/predict"]
        posts += ["/api/forecast", "/api/forecast/stop", "/api/look-again"]
        posts += [f"/api/audit{step}" for step in ("", "/labels", "/undo", "/look", "/release")]
        for path in posts:
            assert client.post(path, json={"minutes": 1}).status_code == 401
            assert client.post(path, json={"minutes": 1}, headers={"authorization": "Bearer wrong"}).status_code == 401
            foreign = {"authorization": f"Bearer {TOKEN}", "origin": "http://evil.example"}
            assert client.post(path, json={"minutes": 1}, headers=foreign).status_code == 403
        gets = ["status", "images", "labels.csv", "findings", "results", "estimate", "forecast", "forecast.svg"]
        for path in (*gets, "audit", "audit/images", "audit/check.csv"):
            assert client.get(f"/api/{path}").status_code == 401
        assert started == []
        assert client.post(
            "/api/training", json={"minutes": 1}, headers={"authorization": f"Bearer {TOKEN}"}
        ).is_success
    assert started == [1]


def test_class_folders_are_labels_that_the_page_does_not_change(tmp_path):
    for kind in KINDS[:2]:
        for i in range(2):
            save_picture(tmp_path / "photos" / "labeled" / kind / f"{i}.png", kind, 100 + i)
    save_folder(tmp_path / "photos" / "unlabeled", each=2)
    project = Project(tmp_path / "photos", device="cpu")
    with TestClient(make_project_app(project, Access()), base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: project.quick_look is not None or project.problem)
        assert client.get("/api/status").json()["classes"] == ["green", "red"]
        names = {image["name"] for image in todo(client)}
        assert names == {f"unlabeled/{i:03}.png" for i in range(6)}
        position = project.desk.names.index("labeled/red/0.png")
        refused = client.post("/api/labels", json={"image": position, "label": "green"})
        assert "move the file" in refused.json()["error"]
        assert "has a folder" in client.post("/api/classes", json={"name": "red", "to": "rot"}).json()["error"]


def test_a_table_that_cannot_be_read_is_told_and_not_overwritten(client, project, folder):
    image = todo(client)[0]
    (folder / "labels.csv").write_text("path,label\na.png,red\na.png,green\n")
    assert "has the label 'red' too" in client.get("/api/status").json()["problem"]
    assert client.post("/api/labels", json={"image": image["image"], "label": "red"}).status_code == 422
    assert (folder / "labels.csv").read_text() == "path,label\na.png,red\na.png,green\n"
    wait_until(lambda: project.problem is not None)
    (folder / "labels.csv").write_text("path,label\n000.png,red\n001.png,green\n")
    wait_until(lambda: project.problem is None and project.quick_look is not None)
    assert client.get("/api/status").json()["problem"] is None


def test_serve_refuses_what_is_no_folder_of_pictures(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["serve", str(tmp_path / "none")]) == 2
    assert "no such run" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "empty")]) == 2
    assert "neither a run nor a folder of images" in capsys.readouterr().err
    save_folder(tmp_path / "photos", each=1)
    assert main(["serve", str(tmp_path / "photos"), "--data", str(tmp_path)]) == 2
    assert "--data is for a run" in capsys.readouterr().err


def test_the_table_can_be_downloaded(client):
    assert client.get("/api/labels.csv").content == b""
    label(client, todo(client)[0], label="red")
    rows = list(csv.DictReader(io.StringIO(client.get("/api/labels.csv").text)))
    assert [row["label"] for row in rows] == ["red"]
