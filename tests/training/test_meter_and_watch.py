"""Logged means against plain Python, and the warnings a colleague would give."""

import pytest
import torch

from npmatch.data import ArrayImages, Split
from npmatch.runs.build import labels_to_judge_by
from npmatch.training import Meter
from npmatch.training.log import Watch
from npmatch.types import Dataset, ImageSet, Step


def make_step(loss, pseudo, keep):
    return Step(torch.tensor(loss), {"alpha": torch.tensor(2 * loss)}, torch.tensor(pseudo), torch.tensor(keep))


def test_labelled_images_do_not_speak_for_the_unlabelled():
    images = ArrayImages(torch.zeros(6, 1, 8, 8, dtype=torch.uint8))
    labels = torch.tensor([0, 1, 0, 1, -1, -2])
    dataset = Dataset("mine", ("a", "b"), ImageSet(images, labels), None, (0.5,), (0.5,))
    split = Split(torch.tensor([0, 1]), torch.arange(6), torch.arange(0), seed=0, fingerprint="")
    assert labels_to_judge_by(dataset, split).tolist() == [-1, -1, 0, 1, -1, -2]
    assert labels.tolist() == [0, 1, 0, 1, -1, -2]


def test_means_trusted_share_and_pseudo_label_accuracy():
    meter = Meter(3, truth=torch.tensor([0, 1, 2, -1]))
    meter.add(make_step(1.0, [0, 2], [True, True]), torch.tensor([0, 1]), {"extra": torch.tensor(1.0)})
    meter.add(make_step(3.0, [2, 1], [True, True]), torch.tensor([2, 3]), {"extra": torch.tensor(2.0)})
    meter.add(make_step(5.0, [1, 1], [False, False]), torch.tensor([2, 3]), {"extra": torch.tensor(3.0)})
    means = meter.read()
    assert means["loss"] == 3
    assert means["alpha"] == 6
    assert means["extra"] == 2
    assert means["trusted"] == pytest.approx(4 / 6)
    assert means["pseudo_accuracy"] == pytest.approx(2 / 3)  # one of four has no known label, one is wrong
    assert means["largest_class_share"] == pytest.approx(2 / 4)


def test_images_of_no_class_are_counted_apart():
    meter = Meter(3, truth=torch.tensor([0, 1, -2, -1, -2, -2]))
    meter.add(make_step(1.0, [0, 2, 1, 1], [True, True, True, False]), torch.tensor([0, 1, 2, 3]), {})
    meter.add(make_step(1.0, [1, 1, 2, 0], [True, False, False, True]), torch.tensor([3, 4, 5, 0]), {})
    means = meter.read()
    assert means["trusted"] == pytest.approx(5 / 8)
    assert means["pseudo_accuracy"] == pytest.approx(2 / 3)  # images 0, 1 and 0 again: the third trusted is of no class
    assert means["foreign_trusted"] == pytest.approx(1 / 3)
    assert means["trusted_is_foreign"] == pytest.approx(1 / 5)
    meter.add(make_step(1.0, [0, 1], [False, False]), torch.tensor([0, 1]), {})
    assert meter.read().keys() == {"loss", "alpha", "trusted"}  # none seen, none trusted: no share to speak of
    known = Meter(3, truth=torch.tensor([0, -1]))
    known.add(make_step(1.0, [0, 1], [True, True]), torch.tensor([0, 1]), {})
    assert not {"foreign_trusted", "trusted_is_foreign"} & known.read().keys()


def test_an_interval_survives_a_checkpoint():
    truth = torch.tensor([0, 1])
    whole, first, second = Meter(2, truth), Meter(2, truth), Meter(2, truth)
    for meter, losses in ((whole, [1.0, 2.0]), (first, [1.0])):
        for loss in losses:
            meter.add(make_step(loss, [0, 1], [True, False]), torch.tensor([0, 1]), {})
    second.load_state_dict(first.state_dict())
    second.add(make_step(2.0, [0, 1], [True, False]), torch.tensor([0, 1]), {})
    assert second.read() == whole.read()


def test_supervised_steps_have_no_trusted_share():
    meter = Meter(2, torch.tensor([0, 1]))
    meter.add(Step(torch.tensor(1.0), {}), torch.empty(0, dtype=torch.long), {})
    assert meter.read() == {"loss": 1.0}


def test_watch_warns_once_when_nothing_is_trusted():
    watch = Watch(10, patience=3)
    said = [watch.look({"trusted": 0.0}) for _ in range(6)]
    assert [len(s) for s in said] == [0, 0, 1, 0, 0, 0]
    assert "algorithm.max_entropy" in said[2][0]


def test_watch_warns_when_one_class_swallows_the_pseudo_labels():
    watch = Watch(10, patience=2)
    lines = [{"trusted": 0.5, "largest_class_share": share} for share in (0.9, 0.2, 0.9, 0.9)]
    said = [watch.look(line) for line in lines]
    assert [len(s) for s in said] == [0, 0, 0, 1]
    assert "alignment" in said[3][0]
