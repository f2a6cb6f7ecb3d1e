"""The server's API, tested without a browser."""

import asyncio
import csv
import errno
import io
import json
import logging
import math
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET

import httpx
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from served_page import CLASSES, UNLABELED, is_ready, picture_bytes, wait_until

import npmatch
from npmatch.cli import main
from npmatch.data import decode_image
from npmatch.decide import Calibration, Novelty
from npmatch.files import is_locked, locked
from npmatch.predict.batches import describe_batch
from npmatch.report.formatting import printable
from npmatch.runs.open import open_run_data
from npmatch.types import Prediction
from npmatch.web.access import Access
from npmatch.web.app import make_app
from npmatch.web.labelling import Labelling
from npmatch.web.server import silence_shutdown_messages
from npmatch.web.site import Site


def all_images(client, view="todo", **more):
    return client.get("/api/images", params={"view": view, "count": 200, **more}).json()["images"]


def test_the_answer_equals_classifier_predict(client, run_folder, tmp_path):
    content = picture_bytes()
    (tmp_path / "x.png").write_bytes(content)
    expected = npmatch.load(run_folder, "cpu").predict(tmp_path / "x.png")
    answer = client.post("/api/predict", content=content).json()
    got = {row["label"]: row["probability"] for row in answer["classes"]}
    torch.testing.assert_close(torch.tensor([got[k] for k in range(3)]), expected.probs[0], atol=1e-6, rtol=0)
    assert answer["entropy"] == pytest.approx(expected.entropy.item(), abs=1e-5)
    assert answer["share"] == pytest.approx(expected.entropy.item() / math.log(3), abs=1e-5)
    assert answer["sureness"] in ("very sure", "fairly sure", "unsure", "very unsure")
    assert answer["seen"].startswith("data:image/png;base64,")


@pytest.mark.parametrize(("form", "mode"), [("JPEG", "CMYK"), ("TIFF", "L"), ("PNG", "RGBA"), ("GIF", "P")])
def test_images_of_other_formats_and_modes_are_answered(reader, form, mode):
    assert reader.post("/api/predict", content=picture_bytes(form=form, mode=mode)).status_code == 200


def test_a_calibrated_run_answers_at_its_temperature_and_explains_its_decisions(run_folder):
    """Overconfident held-out predictions give a temperature above 1, and a threshold that withholds everything."""
    raw = npmatch.load(run_folder, "cpu")
    image = decode_image(io.BytesIO(picture_bytes()), 16)[None]
    prediction, _ = describe_batch(raw.model, image, raw.spec, raw.device)
    g = torch.Generator().manual_seed(0)
    y = torch.randint(3, (200,), generator=g)
    predicted = torch.where(torch.rand(200, generator=g) < 0.6, y, (y + 1) % 3)
    probs = torch.nn.functional.one_hot(predicted, 3) * 0.97 + 0.01
    held_out = Prediction(probs, -(probs * probs.log()).sum(-1))
    far = torch.full((20, raw.model.backbone.num_features), 1e6) + torch.arange(20.0)[:, None]
    calibration = Calibration.fit(held_out, y, Novelty.fit(far), "data.validation")
    calibration.save(run_folder)
    site = Site(run_folder, device="cpu")
    with TestClient(make_app(site, Access()), base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: is_ready(site))
        answer = client.post("/api/predict", content=picture_bytes()).json()
        assert calibration.temperature > 1
        expected = (prediction.probs[0].double().log() / calibration.temperature).softmax(-1)
        got = {row["label"]: row["probability"] for row in answer["classes"]}
        assert [got[k] for k in range(3)] == pytest.approx(expected.tolist(), abs=1e-4)
        texts = [line["text"] for line in answer["remarks"]]
        assert [line["serious"] for line in answer["remarks"]] == [True, True, False]
        assert "Unlike the images the model was trained on" in texts[0]
        assert "withheld: a person should decide" in texts[1]
        assert texts[2] == "Probabilities are calibrated on 200 held-out labels."


def test_neighbours_are_the_labelled_images_of_largest_cosine_similarity(client, site):
    content = picture_bytes()
    near = client.post("/api/predict", content=content).json()["neighbours"]
    classifier, train = site.classifier, site.labelling.train
    labelled = (train.labels >= 0).nonzero().flatten()
    described = [
        describe_batch(classifier.model, x, classifier.spec, classifier.device)[1]
        for x in (train.images.take(labelled), decode_image(io.BytesIO(content), 16)[None])
    ]
    cosine = torch.nn.functional.cosine_similarity(*described)
    best = cosine.argsort(descending=True)[:8]
    assert [row["image"] for row in near] == labelled[best].tolist()
    assert [row["label"] for row in near] == train.labels[labelled[best]].tolist()
    assert [row["likeness"] for row in near] == pytest.approx(cosine[best].tolist(), abs=1e-5)


def test_unlabelled_images_come_most_uncertain_first_on_pages_without_gaps(client, site):
    shown = all_images(client)
    assert sorted(image["name"] for image in shown) == sorted(printable(f"unlabeled/{name}") for name in UNLABELED)
    entropies = [image["entropy"] for image in shown]
    assert entropies == sorted(entropies, reverse=True)
    train = site.labelling.train
    expected = npmatch.load(site.folder, "cpu").predict(train.images.take(torch.tensor([i["image"] for i in shown])))
    assert entropies == pytest.approx(expected.entropy.tolist(), abs=1e-5)
    assert [image["guess"] for image in shown] == expected.label.tolist()
    start, seen = 0, []
    while start is not None:
        page = client.get("/api/images", params={"start": start, "count": 7}).json()
        seen += [image["image"] for image in page["images"]]
        start = page["next"]
    assert seen == [image["image"] for image in shown]
    of_one = all_images(client, predicted=0)
    assert of_one == [image for image in shown if image["guess"] == 0]


def test_labelling_moves_no_image_to_another_page(client):
    first = client.get("/api/images", params={"count": 5}).json()
    for image in first["images"][:3]:
        client.post("/api/labels", json={"image": image["image"], "label": 0})
    second = client.get("/api/images", params={"count": 5, "start": first["next"]}).json()
    everything = all_images(client, "all")
    assert [i["image"] for i in second["images"]] == [i["image"] for i in everything[5:10]]
    back = client.get("/api/images", params={"count": 5, "start": second["previous"]}).json()
    assert [i["image"] for i in back["images"]][:2] == [i["image"] for i in everything[3:5]]


def test_labels_are_written_at_once_and_can_be_undone(client, run_folder, site):
    one, two, three = all_images(client)[:3]
    client.post("/api/labels", json={"image": one["image"], "label": 1})
    client.post("/api/labels", json={"image": two["image"], "skip": True})
    answer = client.post("/api/labels", json={"image": three["image"], "label": 2}).json()
    assert answer["counts"]["labelled"] == 2
    assert answer["counts"]["skipped"] == 1
    name = site.labelling.train.names[one["image"]]
    with open(run_folder / "labels.csv", newline="", encoding="utf-8") as file:
        rows = {row["path"]: row["label"] for row in csv.DictReader(file)}
    assert rows[name] == CLASSES[1]
    assert len(rows) == 2
    assert {i["image"] for i in all_images(client, "labelled")} == {one["image"], three["image"]}
    assert [i["image"] for i in all_images(client, "skipped")] == [two["image"]]
    assert [row["image"] for row in client.post("/api/undo").json()["changed"]] == [three["image"]]
    assert [row["image"] for row in client.post("/api/undo").json()["changed"]] == [two["image"]]
    (changed,) = client.post("/api/undo").json()["changed"]
    assert changed["image"] == one["image"]
    assert changed["given"] is None
    assert client.post("/api/undo").json()["changed"] == []
    assert len(all_images(client)) == len(UNLABELED)


def test_undo_restores_the_previous_label(client):
    image = all_images(client)[0]["image"]
    for label in (0, 2):
        client.post("/api/labels", json={"image": image, "label": label})
    assert client.post("/api/undo").json()["changed"][0]["given"] == 0
    assert client.post("/api/labels", json={"image": image, "label": None}).json()["changed"][0]["given"] is None


def test_labels_survive_a_restart_and_the_export_equals_labels_csv(client, run_folder):
    image = all_images(client)[0]
    client.post("/api/labels", json={"image": image["image"], "label": 1})
    exported = client.get("/api/labels.csv")
    assert exported.headers["content-disposition"] == 'attachment; filename="labels.csv"'
    assert exported.content == (run_folder / "labels.csv").read_bytes()
    again = Site(run_folder, device="cpu")
    with TestClient(make_app(again, Access()), base_url="http://127.0.0.1:8000") as other:
        wait_until(lambda: is_ready(again))
        assert [(i["image"], i["given"]) for i in all_images(other, "labelled")] == [(image["image"], 1)]


def test_labels_written_by_the_command_line_are_seen(client, run_folder, site):
    image = all_images(client)[0]["image"]
    with open(run_folder / "labels.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["path", "label"], [site.labelling.train.names[image], CLASSES[2]]])
    assert client.get("/api/status").json()["counts"]["labelled"] == 1
    assert all_images(client, "labelled")[0]["given"] == 2


def test_images_are_served_large_enough_to_look_at(reader):
    answer = reader.get(f"/api/images/{all_images(reader)[0]['image']}")
    assert answer.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(answer.content)).size == (224, 224)


def test_an_unreadable_file_hides_no_other(trained_folder, run_folder, tmp_path):
    data = shutil.copytree(trained_folder.parent / "data", tmp_path / "data")
    (data / "unlabeled" / "3.png").write_bytes(b"not a picture")
    site = Site(run_folder, data, "cpu")
    with TestClient(make_app(site, Access()), base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: is_ready(site))
        assert client.get("/api/status").json()["counts"]["unreadable"] == 1
        shown = [image["name"] for image in all_images(client)]
        assert len(shown) == len(UNLABELED) - 1
        assert "unlabeled/3.png" not in shown
        position = site.labelling.train.names.index("unlabeled/3.png")
        answer = client.get(f"/api/images/{position}")
        assert answer.status_code == 404
        assert str(tmp_path) not in answer.text


def test_figures_are_complete_svg_files_with_light_and_dark_colours(reader):
    names = [figure["name"] for figure in reader.get("/api/figures").json()]
    assert {"classes", "confidence", "uncertainty", "risk", "error", "losses"} <= set(names)
    for name in names:
        answer = reader.get(f"/figures/{name}.svg")
        assert answer.headers["content-type"].startswith("image/svg+xml")
        assert answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
        root = ET.fromstring(answer.text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "prefers-color-scheme: dark" in answer.text
    assert reader.get("/figures/nothing.svg").status_code == 404


def test_the_status_holds_the_runs_scores(client, run_folder):
    final = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()][-1]
    status = client.get("/api/status").json()
    assert status["scores"]["error"] == final["error"]
    assert status["step"] == 12
    about = client.get("/api/run").json()
    assert about["classes"] == list(CLASSES)
    assert about["learned_from"] == 12
    assert about["command"] == f"npmatch train --resume-from {run_folder}"


def test_a_score_that_is_not_a_number_is_left_out_of_the_status(run_folder, tmp_path):
    for name in ("config.yaml", "split.json"):
        shutil.copy(run_folder / name, tmp_path)
    line = {"kind": "final", "step": 3, "error": float("nan"), "ece": "NaN", "uce": 1.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with TestClient(make_app(Site(tmp_path, device="cpu"), Access()), base_url="http://127.0.0.1:8000") as client:
        assert client.get("/api/status").json()["scores"] == {"uce": 1.5}


def test_a_run_in_training_shows_its_curves_and_then_its_model(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("npmatch.web.site.POLL_SECONDS", 0.05)
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name in ("config.yaml", "split.json"):
        shutil.copy(run_folder / name, unfinished)
    lines = (run_folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (unfinished / "metrics.jsonl").write_text("".join(lines[:3]) + '{"kind": "train", "st')
    site = Site(unfinished, device="cpu")
    with TestClient(make_app(site, Access()), base_url="http://127.0.0.1:8000") as client:
        before = client.get("/api/status").json()
        assert not before["has_model"]
        assert before["counts"] is None
        names = {figure["name"] for figure in client.get("/api/figures").json()}
        assert "losses" in names
        assert "classes" not in names
        assert "no model yet" in client.post("/api/predict", content=picture_bytes()).json()["error"]
        assert client.get("/api/images").status_code == 422
        (unfinished / "metrics.jsonl").write_text("".join(lines[:5]))
        assert client.get("/api/status").json()["figures"] != before["figures"]
        shutil.copytree(run_folder, unfinished, dirs_exist_ok=True)
        wait_until(lambda: is_ready(site))
        assert client.post("/api/predict", content=picture_bytes()).status_code == 200
        assert "classes" in {figure["name"] for figure in client.get("/api/figures").json()}


def test_the_stage_tells_a_stopped_run_from_one_in_training(run_folder):
    (run_folder / "model.safetensors").unlink()
    site = Site(run_folder, device="cpu")
    assert site.status()["stage"] == "stopped"
    with locked(run_folder):
        assert site.status()["stage"] == "training"
        assert is_locked(run_folder), "checking the lock does not release it"
    hold = "import sys, npmatch.files as f, pathlib\nwith f.locked(pathlib.Path(sys.argv[1])): print(); input()"
    with subprocess.Popen(
        [sys.executable, "-uc", hold, run_folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        assert site.status()["stage"] == "training"
        other.communicate(b"\n")
    assert site.status()["stage"] == "stopped"


def test_a_label_given_by_somebody_else_in_the_meantime_is_not_overwritten(client, site):
    image = all_images(client)[0]["image"]
    mine = {"image": image, "label": 0, "seen": None, "who": "me"}
    assert client.post("/api/labels", json=mine).json()["taken"]
    theirs = {"image": image, "label": 1, "seen": None, "who": "they"}
    answer = client.post("/api/labels", json=theirs).json()
    assert not answer["taken"]
    assert answer["changed"][0]["given"] == 0
    assert client.post("/api/undo", json={"who": "they"}).json()["changed"] == []
    assert client.post("/api/labels", json={**theirs, "seen": 0}).json()["changed"][0]["given"] == 1
    assert client.post("/api/labels", json={**mine, "label": 1}).json()["taken"], "both give the same label"
    assert list(site.labelling.annotations.book.labels.values()) == [CLASSES[1]]


def test_two_servers_do_not_overwrite_each_others_labels(client, run_folder, site):
    image = all_images(client)[0]["image"]
    other = Labelling(open_run_data(run_folder))
    assert other.mark(image, 0, False, "they", None)["taken"]
    answer = client.post("/api/labels", json={"image": image, "label": 1, "seen": None}).json()
    assert not answer["taken"]
    assert answer["changed"][0]["given"] == 0


def test_a_label_that_could_not_be_saved_is_not_counted_and_can_be_given_again(client, site, monkeypatch):
    one, two, three = (image["image"] for image in all_images(client)[:3])
    client.post("/api/labels", json={"image": one, "label": 0})
    before = client.get("/api/status").json()["counts"]
    with monkeypatch.context() as patch:
        patch.setattr("npmatch.runs.label_file.write_atomically", full_disk)
        for path, body in (("/api/labels", {"image": two, "label": 1}), ("/api/undo", {})):
            answer = client.post(path, json=body)
            assert answer.status_code == 507
            assert "cannot be written (No space left on device); nothing was saved" in answer.json()["error"]
            assert client.get("/api/status").json()["counts"] == before
        assert client.post("/api/labels", json={"image": three, "skip": True}).json()["taken"], "a skip needs no disk"
        assert client.post("/api/labels", json={"image": two, "label": 1}).status_code == 507
    assert client.post("/api/labels", json={"image": two, "label": 1}).json()["counts"]["labelled"] == 2
    undone = [client.post("/api/undo").json()["changed"][0]["image"] for _ in range(3)]
    assert undone == [two, three, one]


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_image_both_labelled_and_skipped_counts_once(client, site):
    one, two, *_ = (image["image"] for image in all_images(client))
    client.post("/api/labels", json={"image": one, "label": 0})
    client.post("/api/labels", json={"image": one, "skip": True})
    counts = client.post("/api/labels", json={"image": two, "skip": True}).json()["counts"]
    assert (counts["labelled"], counts["skipped"], counts["todo"]) == (1, 1, len(UNLABELED) - 2)
    assert len(all_images(client)) == counts["todo"]


def test_a_damaged_labels_csv_is_reported_until_it_is_repaired(client, run_folder):
    (run_folder / "labels.csv").write_text("path,label\n=1+1.png,wombat\n")
    status = client.get("/api/status").json()
    assert "unknown class 'wombat'" in status["problem"]
    assert status["counts"] is None
    (run_folder / "labels.csv").unlink()
    assert client.get("/api/status").json()["problem"] is None


def test_a_labels_csv_that_was_restored_is_told_on_the_page(client, run_folder, monkeypatch):
    monkeypatch.setattr("npmatch.runs.label_file.SETTLE_SECONDS", 0.0)
    client.post("/api/labels", json={"image": all_images(client)[0]["image"], "label": 0})
    (run_folder / "labels.csv").write_bytes(b"")
    status = client.get("/api/status").json()
    assert "restored from labels.backup.csv (number of labels: 1)" in status["problem"]
    assert status["counts"]["labelled"] == 1


def test_without_the_data_the_model_still_answers_and_the_status_says_why(run_folder, tmp_path):
    config = run_folder / "config.yaml"
    text = config.read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.strip().startswith("root:"))
    config.write_text(text.replace(line, "  root: /nowhere"), encoding="utf-8")
    site = Site(run_folder, device="cpu")
    with TestClient(make_app(site, Access()), base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: site.problem is not None)
        problem = client.get("/api/status").json()["problem"]
        assert "/nowhere" in problem
        assert "--data DIR" in problem
        answer = client.post("/api/predict", content=picture_bytes())
        assert answer.status_code == 200
        assert answer.json()["neighbours"] == []
        assert "/nowhere" in client.get("/api/images").json()["error"]


def test_serve_reports_bad_arguments_in_one_line(run_folder, capsys, shared_page):
    for words, message in (
        (["serve", "nowhere"], "nowhere: no such run"),
        (
            ["serve", str(run_folder), "--port", str(shared_page.port)],
            f"127.0.0.1:{shared_page.port}: Address already in use",
        ),
        (["serve", str(run_folder), "--token", "short"], "--token: use at least 16 letters and digits"),
        (["serve", str(run_folder), "--host", "no.such.host.invalid"], "no.such.host.invalid"),
    ):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
        assert err.count("\n") == 1


def test_serve_prints_its_address_and_ends_on_ctrl_c(run_folder):
    words = [sys.executable, "-u", "-m", "npmatch", "serve", str(run_folder), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\w{32}", process.stdout.readline())[0]
        assert "npmatch" in httpx.get(address, timeout=60).text
        without = httpx.get(address.partition("?")[0], timeout=60)
        assert without.status_code == 401, "other users of this machine can reach the port as well"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err == ""


def test_requests_cancelled_by_the_shutdown_are_not_logged(caplog):
    silence_shutdown_messages()
    log = logging.getLogger("uvicorn.error")
    log.error("Cancel 1 running task(s), timeout graceful shutdown exceeded")
    for error in (asyncio.CancelledError("Task cancelled, timeout graceful shutdown exceeded"), ValueError("a bug")):
        log.error("Exception in ASGI application", exc_info=error)
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]


def test_without_the_extra_serve_says_what_to_install(run_folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(run_folder)]) == 2
    err = capsys.readouterr().err
    assert "uvicorn is not installed; pip install 'npmatch[serve]'" in err
    assert err.count("\n") == 1


def test_images_without_file_names_can_be_labelled(tiny_run, tmp_path):
    folder = shutil.copytree(tiny_run.folder, tmp_path / "digits")
    site = Site(folder, device="cpu")
    with TestClient(make_app(site, Access()), base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: is_ready(site))
        image = client.get("/api/images").json()["images"][0]
        assert image["name"] == f"#{image['image']}"
        assert client.post("/api/labels", json={"image": image["image"], "label": 7}).status_code == 200
        assert (folder / "labels.csv").read_text().splitlines()[1] == f"#{image['image']},7"
        assert client.get(f"/api/images/{image['image']}").headers["content-type"] == "image/png"
