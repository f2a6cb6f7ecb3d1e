"""Files from elsewhere: a pickle, a checkpoint, an archive, a configuration, a name. None of them runs anything."""

import contextlib
import csv
import gzip
import json
import os
import pickle
import re
import shutil
import struct
import sys

import pytest
import torch
import yaml
from PIL import Image

import npmatch
from few_photos import WORDS, save_photos
from npmatch import user_code as imports
from npmatch.algorithms.label_embeddings import load_label_embeddings
from npmatch.cli import main
from npmatch.config.tree import read_config_file
from npmatch.data import load_dataset
from npmatch.data.sources.mnist import IMAGES, read_idx
from npmatch.errors import NPMatchError
from npmatch.training import Checkpoints, load_tensors, save_tensors
from tiny import stop_tiny, train_tiny


class Bomb:
    """What a pickle can be: unpickled, it makes a folder."""

    def __init__(self, mark) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def bomb(tmp_path):
    """A pickle that leaves a mark when it is opened, and the mark."""
    mark = tmp_path / "exploded"
    content = pickle.dumps(Bomb(mark))
    pickle.loads(content)
    assert mark.exists(), "it does explode"
    mark.rmdir()
    return content, mark


@pytest.fixture
def model(tiny_run, tmp_path):
    """A model as someone might send it."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "config.yaml", "split.json"):
        shutil.copy(tiny_run.folder / name, folder / name)
    return folder


@pytest.fixture
def strangers_code(tmp_path, monkeypatch):
    """A module that a stranger's file could name, because it lies on the path; a mark tells that it was imported."""
    mark = tmp_path / "imported"
    (tmp_path / "strangers_code.py").write_text(
        f"import os; os.mkdir({str(mark)!r})\n"
        "from npmatch.backbones import SmallCNN\n"
        "Net = lambda channels: SmallCNN(4, 1, channels)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imports, "_typed", set())
    yield mark
    sys.modules.pop("strangers_code", None)


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("protocol", ["pickle", "torch.save"])
def test_a_pickle_as_a_model_or_checkpoint_is_not_opened(model, bomb, tmp_path, protocol):
    content, mark = bomb
    if protocol == "torch.save":
        torch.save(Bomb(mark), tmp_path / "file")
        content = (tmp_path / "file").read_bytes()
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(NPMatchError, match=r"model\.safetensors: not a readable safetensors file"):
        npmatch.load(model)
    (tmp_path / "step-00000001.safetensors").write_bytes(content)
    with pytest.raises(NPMatchError, match="no checkpoint in it can be read"):
        Checkpoints(tmp_path).load_latest(lambda text: None)
    assert not mark.exists()


def test_a_pickle_under_cifars_name_is_not_opened(bomb, tmp_path):
    content, mark = bomb
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(content)
    with pytest.raises(NPMatchError, match="missing or damaged"):
        load_dataset("cifar10", tmp_path / "data")
    assert not mark.exists()


def test_a_pickle_among_label_embeddings_is_not_opened(bomb, tmp_path):
    import numpy as np

    _, mark = bomb
    np.savez(tmp_path / "table.npz", names=np.array([Bomb(mark)], dtype=object), vectors=np.zeros((1, 3)))
    with pytest.raises(NPMatchError, match="table"):
        load_label_embeddings(["cat"], str(tmp_path / "table.npz"))
    assert not mark.exists()


HEADERS = {
    "a length beyond the file": struct.pack("<Q", 2**63) + b"{}",
    "a length of gigabytes": struct.pack("<Q", 2**33) + b"{}" * 100,
    "a shape of terabytes": (lambda h: struct.pack("<Q", len(h)) + h)(
        b'{"w":{"dtype":"F32","shape":[1000000,1000000],"data_offsets":[0,4000000000000]}}'
    ),
    "offsets that overlap": (lambda h: struct.pack("<Q", len(h)) + h + bytes(8))(
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    ),
    "nested beyond reason": (lambda h: struct.pack("<Q", len(h)) + h)(b'{"a":' * 50_000),
    "scalars that are none": (lambda h: struct.pack("<Q", len(h)) + h)(b'{"__metadata__":{"npmatch":"[1,2"}}'),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_an_absurd_header_is_one_line(tmp_path, kind):
    path = tmp_path / "model.safetensors"
    path.write_bytes(HEADERS[kind])
    with pytest.raises(NPMatchError, match=r"model\.safetensors"):
        load_tensors(path)


def test_a_model_that_holds_nan_is_refused_and_one_that_computes_it_too(model, tmp_path, capfd):
    tensors, _ = load_tensors(model / "model.safetensors")
    weight = tensors["head.classifier.weight"]
    save_tensors(model / "model.safetensors", {**tensors, "head.classifier.weight": torch.full_like(weight, torch.nan)})
    with pytest.raises(NPMatchError, match=r"model\.safetensors: .*head\.classifier\.weight holds NaN"):
        npmatch.load(model)
    save_tensors(model / "model.safetensors", {**tensors, "head.classifier.weight": torch.full_like(weight, torch.inf)})
    Image.new("L", (8, 8), 200).save(tmp_path / "image.png")
    assert main(["predict", str(model), str(tmp_path / "image.png"), "-o", str(tmp_path / "out.csv")]) == 2
    assert "predictions are not finite" in capfd.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_tensors_of_another_shape_or_name_are_one_line(model):
    edit(model / "config.json", class_names=["a", "b"])
    with pytest.raises(NPMatchError, match=r"does not fit .*config\.json"):
        npmatch.load(model)


@pytest.mark.parametrize("key", ["algorithm", "backbone_config"])
def test_a_model_does_not_choose_which_python_runs(model, strangers_code, key, capfd):
    name = "strangers_code:Net"
    edit(model / "config.json", **{key: name if key == "algorithm" else {"name": name}})
    with pytest.raises(NPMatchError, match=r"config\.json: would run the Python code 'strangers_code:Net'.*--trust"):
        npmatch.load(model)
    assert main(["predict", str(model), str(model), "-o", str(model / "out.csv")]) == 2
    assert not strangers_code.exists()
    with contextlib.suppress(NPMatchError):  # no algorithm, but a backbone
        npmatch.load(model, trust_code=True)
    assert strangers_code.exists()


@pytest.mark.parametrize("key", ["data.source", "augment.policy", "algorithm.name", "backbone.name", "data.foreign"])
def test_a_runs_configuration_does_not_choose_which_python_runs(model, tmp_path, strangers_code, key, capfd):
    precious = tmp_path / "precious"
    precious.mkdir()
    config = yaml.safe_load((model / "config.yaml").read_text())
    group, leaf = key.split(".")
    config[group][leaf] = "shutil:rmtree"  # a data source is called with its root
    config["data"]["root"] = str(precious)
    (model / "config.yaml").write_text(yaml.safe_dump(config))
    for words in (["evaluate", str(model)], ["train", "--resume", "--out", str(model)]):
        assert main(words) == 2
        assert "would run the Python code 'shutil:rmtree'" in capfd.readouterr().err
    assert precious.exists()


def test_code_that_was_typed_in_this_process_needs_no_consent(tmp_path, strangers_code):
    train_tiny(tmp_path / "run", backbone__name="strangers_code:Net")
    assert npmatch.load(tmp_path / "run").class_names == tuple("0123456789")


def test_the_command_that_started_a_run_with_own_code_resumes_it(tmp_path, strangers_code, monkeypatch):
    stop_tiny(tmp_path / "run", 12, backbone__name="strangers_code:Net")
    monkeypatch.setattr(imports, "_typed", set())  # as in a new process
    with pytest.raises(NPMatchError, match="would run the Python code"):
        npmatch.fit(out=tmp_path / "run", resume=True, quiet=True)
    run = train_tiny(tmp_path / "run", resume=True, backbone__name="strangers_code:Net")
    assert run.records()[-1]["step"] == 24


def test_consent_in_python(tmp_path, strangers_code, monkeypatch):
    stop_tiny(tmp_path / "run", 12, backbone__name="strangers_code:Net")
    monkeypatch.setattr(imports, "_typed", set())
    run = npmatch.fit(out=tmp_path / "run", resume=True, quiet=True, trust_code=True, device="cpu")
    monkeypatch.setattr(imports, "_typed", set())
    with pytest.raises(NPMatchError, match="would run the Python code"):
        npmatch.evaluate_run(run.folder, device="cpu")
    again = npmatch.evaluate_run(run.folder, device="cpu", trust_code=True).scores
    assert again == {key: run.scores[key] for key in again}


def test_trust_code_is_taken_wherever_it_stands(model, strangers_code, capfd):
    edit(model / "config.json", backbone_config={"name": "strangers_code:Net"})
    for words in (["--trust-code", "predict", str(model)], ["predict", str(model), "--trust-code"]):
        main([*words, str(model), "-o", str(model / "out.csv")])
        assert "would run" not in capfd.readouterr().err
    assert strangers_code.exists()


def test_yaml_makes_no_objects(tmp_path):
    mark = tmp_path / "exploded"
    (tmp_path / "config.yaml").write_text(f"seed: !!python/object/apply:os.mkdir ['{mark}']\n")
    with pytest.raises(NPMatchError, match="not valid YAML"):
        read_config_file(tmp_path / "config.yaml")
    assert not mark.exists()


def test_a_small_archive_cannot_ask_for_gigabytes(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(">4I", IMAGES, 300_000, 1000, 1000))
        for _ in range(300):
            file.write(bytes(1_000_000))
    assert path.stat().st_size < 400_000
    with pytest.raises(NPMatchError, match=r"ubyte\.gz: more than .* bytes"):
        read_idx(path, IMAGES)


def test_a_file_name_cannot_write_to_the_terminal(tiny_run, tmp_path, capfd):
    name = "evil\x1b[2J\x07\nnpmatch: all well.png"
    (tmp_path / name).write_bytes(b"not an image")
    assert main(["predict", str(tiny_run.folder), str(tmp_path), "-o", str(tmp_path / "out.csv")]) == 1
    said = capfd.readouterr()
    for stream in (said.out, said.err):
        assert "\x1b" not in stream
        assert "\x07" not in stream
        assert "\nnpmatch: all well" not in stream
    assert main(["predict", str(tmp_path / name / "x"), str(tmp_path), "-o", str(tmp_path / "out.csv")]) == 2
    assert "\x1b" not in capfd.readouterr().err


def test_names_of_classes_and_files_cannot_write_to_the_terminal(tmp_path, capfd):
    """Not in any verb that prints them, nor as JSON: ESC, the one-byte CSI of some terminals, and a line of its own."""
    evil = ["a\x1b[2J\nnpmatch: all well", "b\x9b31m\u202egpj", "c"]
    root = save_photos(tmp_path / "photos", classes=evil, unlabeled=3)
    (root / "unlabeled" / "0.png").rename(root / "unlabeled" / "z\x1b[2J\x9b0m.png")
    run, image = str(tmp_path / "run"), str(root / "unlabeled" / "1.png")
    for number, name in enumerate(evil[:2]):  # the second changes what the first says, which is printed
        with open(tmp_path / f"{number}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["path", "label"], [image, name]])
    verbs = [["check-data", str(root)], ["evaluate", run], ["suggest", run, "-n", "3"]]
    verbs += [["label", run, str(tmp_path / f"{number}.csv")] for number in range(2)]
    verbs += [["predict", run, str(root), "-o", str(tmp_path / "out.csv")]]
    train = ["train", "--data", str(root), "--out", run, *(f"{key}={value}" for key, value in WORDS.items())]
    for words in (train, *verbs, *([*verb, "--json"] for verb in verbs)):
        assert main(words) == 0, words
        said = capfd.readouterr()
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said.out + said.err), words
        assert "\nnpmatch: all well" not in said.out + said.err, words


def test_a_checkpoint_of_a_stranger_is_not_unpickled_on_resume(tmp_path, bomb):
    content, mark = bomb
    stop_tiny(tmp_path / "run", 8)
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.write_bytes(content)
    with pytest.raises(NPMatchError, match="no checkpoint"):
        train_tiny(tmp_path / "run", resume=True)
    assert not mark.exists()


def test_links_in_a_strangers_run_are_not_written_through(tmp_path):
    folder, precious = tmp_path / "run", tmp_path / "precious"
    stop_tiny(folder, 12)
    (folder / ".lock").unlink()
    links = [".lock", "metrics.jsonl.tmp", "config.yaml.tmp", "model.safetensors.tmp", "predictions/test.parquet.tmp"]
    links += ["checkpoints/step-00000014.safetensors.tmp", "report.html.tmp"]
    (folder / "predictions").mkdir()
    for name in links:
        precious.write_text("mine")
        (folder / name).symlink_to(precious)
    train_tiny(folder, resume=True)
    assert precious.read_text() == "mine"
    assert not (folder / "model.safetensors").is_symlink()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("config.json", "predict"),
        ("model.safetensors", "predict"),
        ("calibration.safetensors", "predict"),
        ("metrics.jsonl", "predict"),
        ("config.yaml", "evaluate"),
        ("split.json", "evaluate"),
        ("environment.json", "evaluate"),
        ("data.json", "train"),
        ("checkpoints/step-00000014.safetensors", "train"),
    ],
)
def test_a_pipe_under_a_name_of_a_run_is_not_waited_for(tiny_run, tmp_path, capfd, name, command):
    run = tmp_path / "run"
    if command == "train":
        stop_tiny(run, 16)
    else:
        shutil.copytree(tiny_run.folder, run)
    (run / name).unlink()
    os.mkfifo(run / name)
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    words = {
        "predict": [str(run), str(tmp_path / "image.png"), "-o", str(tmp_path / "out.csv")],
        "evaluate": [str(run)],
        "train": ["--out", str(run), "--resume"],
    }
    code = main([command, *words[command]])
    assert code == (0 if name in ("environment.json", "checkpoints/step-00000014.safetensors") else 2)
    assert "Traceback" not in capfd.readouterr().err


def test_a_linked_card_is_not_published(model, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (model / "config.yaml").unlink()  # a model, not a run
    (model / "README.md").symlink_to(secret)
    with pytest.raises(NPMatchError, match=r"README\.md: a link to a file elsewhere"):
        npmatch.load(model).save_pretrained(tmp_path / "copy")
    assert not (tmp_path / "copy" / "README.md").exists()
    # In the hub's cache every file is a link to a blob.
    cached = tmp_path / "models--me--model" / "snapshots" / "0123"
    cached.parent.mkdir(parents=True)
    model.rename(cached)
    (cached.parents[1] / "blobs").mkdir()
    secret.rename(cached.parents[1] / "blobs" / "4567")
    (cached / "README.md").unlink()
    (cached / "README.md").symlink_to("../../blobs/4567")
    npmatch.load(cached).save_pretrained(tmp_path / "copy")
    assert (tmp_path / "copy" / "README.md").read_text() == "mine"


BROKEN_SPECS = {
    "a list": lambda spec: [],
    "a backbone that is a list": lambda spec: {**spec, "backbone_config": []},
    "a backbone without a name": lambda spec: {**spec, "backbone_config": {"name": 5}},
    "settings that are a list": lambda spec: {**spec, "algorithm_config": []},
    "an algorithm that is a number": lambda spec: {**spec, "algorithm": 4},
    "a negative width": lambda spec: {**spec, "backbone_config": {**spec["backbone_config"], "width": -1}},
    "a broken width": lambda spec: {**spec, "backbone_config": {**spec["backbone_config"], "width": 4.5}},
    "a width of terabytes": lambda spec: {**spec, "backbone_config": {**spec["backbone_config"], "width": 10**6}},
    "no sample": lambda spec: {**spec, "algorithm_config": {**spec["algorithm_config"], "samples": -1}},
    "millions of samples": lambda spec: {
        **spec,
        "algorithm_config": {**spec["algorithm_config"], "samples": 4 * 10**7},
    },
    "an empty bank": lambda spec: {**spec, "algorithm_config": {**spec["algorithm_config"], "bank": 0}},
    "a bank in words": lambda spec: {**spec, "algorithm_config": {**spec["algorithm_config"], "bank": "large"}},
    "no stride": lambda spec: {**spec, "backbone_config": {**spec["backbone_config"], "stem_stride": 0}},
    "a momentum in words": lambda spec: {**spec, "backbone_config": {**spec["backbone_config"], "norm_momentum": "x"}},
    "an unknown network": lambda spec: {**spec, "backbone_config": {**spec["backbone_config"], "name": "wrn-9-9"}},
    "a key of no version": lambda spec: {**spec, "backbone_config": {**spec["backbone_config"], "colour": "red"}},
    "one class twice": lambda spec: {**spec, "class_names": ["cat", "cat", *spec["class_names"][2:]]},
    "classes in one word": lambda spec: {**spec, "class_names": "0123456789"},
    "classes that are numbers": lambda spec: {**spec, "class_names": list(range(10))},
    "a side of megametres": lambda spec: {**spec, "stored_side": 10**6},
    "no side": lambda spec: {**spec, "stored_side": 0},
    "a side in words": lambda spec: {**spec, "side": "eight"},
    "a crop larger than the picture": lambda spec: {**spec, "side": spec["stored_side"] + 1},
    "two means": lambda spec: {**spec, "mean": [0.1, 0.2]},
    "a mean in words": lambda spec: {**spec, "mean": ["grey"]},
    "no spread": lambda spec: {**spec, "std": [0]},
    "a spread next to nothing": lambda spec: {**spec, "std": [1e-300]},
    "a spread that is no number": lambda spec: {**spec, "std": [float("nan")]},
    "a mean that is no number": lambda spec: {**spec, "mean": [float("nan")]},
    "a mean without end": lambda spec: {**spec, "mean": [float("inf")]},
    "a mean that is true": lambda spec: {**spec, "mean": [True]},
}


@pytest.mark.parametrize("change", BROKEN_SPECS)
def test_a_config_json_that_describes_no_model_is_one_line(model, change):
    path = model / "config.json"
    path.write_text(json.dumps(BROKEN_SPECS[change](json.loads(path.read_text()))))
    with pytest.raises(NPMatchError, match=r"config\.json"):
        npmatch.load(model)


@pytest.mark.parametrize("setting", [("samples", 10**4), ("bank", 10**6)])
def test_a_config_json_takes_no_more_memory_than_its_weights(tiny_run, tmp_path, setting, monkeypatch):
    run = shutil.copytree(tiny_run.folder, tmp_path / "run")
    key, value = setting
    config = json.loads((run / "config.json").read_text())
    edit(run / "config.json", algorithm_config={**config["algorithm_config"], key: value})
    made = []
    randn, zeros = torch.randn, torch.zeros
    monkeypatch.setattr(torch, "randn", lambda *size, **kw: made.append(randn(*size, **kw)) or made[-1])
    monkeypatch.setattr(torch, "zeros", lambda *size, **kw: made.append(zeros(*size, **kw)) or made[-1])
    with contextlib.suppress(NPMatchError):  # the noise in the file is that of the samples it was saved with
        npmatch.load(run)
    assert made
    assert all(tensor.device.type == "meta" or tensor.numel() < 10**4 for tensor in made)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "data.json", "split.json", "config.yaml"])
def test_brackets_without_end_are_one_line(tiny_run, tmp_path, name):
    run = tmp_path / "run"
    if name == "config.json":
        shutil.copytree(tiny_run.folder, run)
    else:
        stop_tiny(run, 8)
    file = run / name
    file.write_bytes(b"[" * 100_000 + b"\n" + file.read_bytes())
    with pytest.raises(NPMatchError, match=name):
        npmatch.load(run) if name == "config.json" else train_tiny(run, resume=True)


@pytest.mark.parametrize("part", ["novelty/features", "novelty/mean", "novelty/scale", "novelty/own"])
def test_a_calibration_of_parts_that_do_not_fit_is_one_line(model, tiny_run, part):
    tensors, scalars = load_tensors(tiny_run.folder / "calibration.safetensors")
    save_tensors(model / "calibration.safetensors", {**tensors, part: torch.zeros(3)}, scalars)
    with pytest.raises(NPMatchError, match=r"calibration\.safetensors: its contents do not fit together"):
        npmatch.load(model)
