"""Labels from clusters reach training and nothing else: not the split, not the scores, not the labels of a user."""

import json
from dataclasses import replace

import pytest
import torch

import npmatch
from few_photos import save_photos
from npmatch.config.resolve import resolve_config
from npmatch.data import load_configured, make_split
from npmatch.errors import NPMatchError
from npmatch.runs.build import build, prepare_views
from npmatch.training import Display

CLASSES = ("cat", "dog")
SHORT = {
    "training.iterations": 2,
    "training.batch": 8,
    "training.unlabeled_ratio": 1,
    "training.checkpoint_every": 1,
    "training.cluster_labels": 3,
    "backbone.input_size": 32,
    "backbone.cached_views": 1,
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return save_photos(tmp_path_factory.mktemp("data"), (40, 36), CLASSES, labels=2, unlabeled=20, test=4)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return tmp_path_factory.mktemp("features")


def prepared(photographs, features, shuffle=False, **settings):
    """The data set and split of a folder, and those that are learnt from."""
    words = {**SHORT, **{key.replace("__", "."): value for key, value in settings.items()}}
    config = resolve_config(data=photographs, overrides=words, device="cpu")
    dataset = load_configured(config.data)
    split = make_split(dataset, None, seed=0)
    if shuffle:
        labels = dataset.train.labels.clone()
        hidden = split.unlabeled[~torch.isin(split.unlabeled, split.labeled)]
        labels[hidden] = torch.randint(0, 2, (len(hidden),))
        dataset = replace(dataset, train=replace(dataset.train, labels=labels))
    _, learnt_set, learnt = prepare_views(config, dataset, split, CPU, Display("", 0, True), features)
    return config, dataset, split, learnt_set, learnt


@pytest.mark.parametrize("frozen", [True, False])
def test_more_images_are_learnt_as_labelled_and_the_data_set_stays_as_it_was(photographs, features, frozen):
    _, dataset, split, learnt_set, learnt = prepared(photographs, features, backbone__frozen=frozen)
    assert len(split.labeled) == 4
    assert len(learnt.labeled) == 10
    assert torch.isin(split.labeled, learnt.labeled).all()
    assert torch.equal(learnt.unlabeled, split.unlabeled)
    known = learnt_set.train.labels[split.labeled]
    assert torch.equal(known, dataset.train.labels[split.labeled])
    assert learnt_set.train.labels[learnt.labeled].bincount().tolist() == [5, 5]
    assert (dataset.train.labels[split.unlabeled] == -1).sum() == 20, "the folder's labels are not written to"


def test_labels_of_unlabelled_images_make_no_difference(photographs, features):
    _, _, _, learnt_set, learnt = prepared(photographs, features)
    _, _, _, other_set, other = prepared(photographs, features, shuffle=True)
    assert torch.equal(other.labeled, learnt.labeled)
    assert torch.equal(other_set.train.labels[other.labeled], learnt_set.train.labels[learnt.labeled])


def test_batches_hold_them_with_their_labels(photographs, features):
    config, dataset, split, learnt_set, learnt = prepared(photographs, features)
    trainer, evaluator = build(config, dataset, split, CPU, Display("", 0, True), features=features)
    seen = torch.cat([raw.labeled for raw in trainer.stream.batches(0, 2)])
    labels = torch.cat([raw.y for raw in trainer.stream.batches(0, 2)])
    assert seen.max() >= len(split.labeled)
    assert torch.equal(labels, learnt_set.train.labels[learnt.labeled[seen]])
    assert len(evaluator.split.labeled) == len(split.labeled)
    assert evaluator.spec.num_labeled == len(split.labeled)


def test_a_run_keeps_its_split_and_resumes_to_the_bit(photographs, tmp_path):
    whole = npmatch.fit(data=photographs, out=tmp_path / "whole", device="cpu", overrides=SHORT)
    assert len(json.loads((whole.folder / "split.json").read_text())["labeled"]) == 4
    part = tmp_path / "part"
    npmatch.fit(data=photographs, out=part, device="cpu", overrides=SHORT)
    (part / "metrics.jsonl").unlink()
    for checkpoint in (part / "checkpoints").glob("step-000000002*"):
        checkpoint.unlink()
    npmatch.fit(data=photographs, out=part, device="cpu", overrides=SHORT, resume=True)
    assert (part / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


def test_a_method_without_unlabelled_images_learns_from_the_given_labels_alone(photographs, features):
    _, _, split, _, learnt = prepared(photographs, features, algorithm__name="supervised")
    assert torch.equal(learnt.labeled, split.labeled)


def test_without_learnt_features_there_are_no_clusters(photographs, features):
    with pytest.raises(NPMatchError, match=r"training\.cluster_labels=3: needs learnt features"):
        prepared(photographs, features, backbone__pretrained=False, data__image_size=8, backbone__input_size=None)
