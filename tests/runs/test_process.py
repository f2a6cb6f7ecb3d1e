"""The context of a neural process taken apart: the rows that must not change anything, and those that must."""

import dataclasses
import json

import pytest
import torch

import npmatch
from npmatch.cli import main
from npmatch.data.images import select_images
from npmatch.errors import NPMatchError
from npmatch.predict.export import export_onnx
from npmatch.runs.open import open_run_data
from npmatch.runs.process import ablate_context, context_changes, context_rows, describe
from tiny import train_tiny


@pytest.fixture(scope="module")
def rows(tiny_run):
    return {row.change: row for row in ablate_context(tiny_run.folder, device="cpu")}


def test_the_saved_model_is_the_first_row(rows, tiny_run):
    assert next(iter(rows)) == "as saved"
    assert rows["as saved"].error == pytest.approx(tiny_run.scores["error"])
    assert rows["as saved"].nll == pytest.approx(tiny_run.scores["nll"], rel=1e-4)


def test_without_noise_the_samples_agree(rows):
    assert rows["z at its mean"].information == pytest.approx(0, abs=1e-6)
    assert rows["z zeroed"].information == pytest.approx(0, abs=1e-6)
    assert rows["context rebuilt"].information > 0


@pytest.fixture
def head(tiny_run):
    return npmatch.load(tiny_run.folder, "cpu").model.head


def points(head, n):
    return torch.randn(n, head.decoder_in.in_features - 2 * head.width), torch.arange(n) % head.num_classes


def test_the_context_is_the_mean_of_its_points(head):
    f, y = points(head, 7)
    head.set_context(f, y)
    each = torch.stack([head.encode_latent(f[i : i + 1], y[i : i + 1])[0] for i in range(7)])
    torch.testing.assert_close(head.latent_bank.mean(), each.mean(0))


@pytest.mark.parametrize("name", ["labels permuted", "a class removed", "context halved"])
def test_changes_of_the_points_change_what_is_read_of_them(head, name):
    f, y = points(head, 40)
    head.set_context(f, y)
    before = head.deterministic_bank.mean()
    for change in dict(context_changes(y))[name]:
        change(head, f, y)
        assert not torch.equal(head.deterministic_bank.mean(), before)


@pytest.mark.parametrize("process", ["attentive", "kernel"])
def test_a_process_that_predicts_from_its_context_fails_without_it(tmp_path, process):
    run = train_tiny(tmp_path / "run", algorithm="npmatch", training__iterations=20, algorithm__process=process)
    rows = {row.change: row for row in ablate_context(run.folder, device="cpu")}
    assert rows["as saved"].error == pytest.approx(run.scores["error"]), "evaluated in training as it is saved"
    assert rows["context rebuilt"] == dataclasses.replace(rows["as saved"], change="context rebuilt")
    assert rows["not resampled"].information == pytest.approx(0, abs=1e-6)
    assert rows["labels permuted"].nll != pytest.approx(rows["as saved"].nll, rel=1e-3)
    assert "z zeroed" not in rows
    assert export_onnx(npmatch.load(run.folder, "cpu"), tmp_path / "model.onnx") < 1e-4


def test_the_command_prints_a_table_or_json(tiny_run, capsys):
    assert main(["evaluate", str(tiny_run.folder), "--process", "--device", "cpu"]) == 0
    assert "labels permuted" in capsys.readouterr().out
    assert main(["evaluate", str(tiny_run.folder), "--process", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["process"]
    assert {"change", "error", "nll", "uce", "information"} == set(found[0])


def test_a_method_without_a_process_is_refused(tmp_path):
    run = train_tiny(tmp_path / "run", algorithm="fixmatch", training__iterations=1)
    with pytest.raises(NPMatchError, match="'fixmatch' has no neural process"):
        ablate_context(run.folder, device="cpu")


def test_other_images_than_the_held_out_ones_can_judge(tiny_run, rows):
    classifier, run = npmatch.load(tiny_run.folder, "cpu"), open_run_data(tiny_run.folder)

    def judged_by(images):
        return context_rows(classifier, run, describe(classifier, run, images.images)[1], images.labels)

    assert judged_by(run.dataset.test) == list(rows.values())
    hidden = select_images(run.dataset.train, run.split.unlabeled[:100])
    found = {row.change: row for row in judged_by(hidden)}
    expected = (classifier.predict(hidden.images.take(torch.arange(100))).label != hidden.labels).double().mean()
    assert found["as saved"].error == pytest.approx(100 * float(expected))
