"""Long-tailed splits: numbers of images against the literature's, for every distribution of unlabelled images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from npmatch.config.recipes import RECIPES
from npmatch.config.resolve import resolve_config
from npmatch.data import ArrayImages, Dataset, ImageSet, load_dataset
from npmatch.data.config import DataConfig
from npmatch.data.long_tail import draw_split, is_balanced, long_tailed, thin_unlabeled
from npmatch.data.split import Split
from npmatch.errors import NPMatchError

# CIFAR-10 with N_1 = 1500 and γ = 100, as in the code of DARP (Kim et al. 2020; from memory).
PUBLISHED = [1500, 899, 539, 323, 193, 116, 69, 41, 25, 15]
TAIL = DataConfig("digits", labels_head=40, unlabeled_head=100, imbalance=20.0)


def split_digits(config: DataConfig, seed: int = 0) -> tuple[Split, list[int], list[int]]:
    """A split of the digits, and the labelled and further unlabelled images of each class."""
    dataset = load_dataset("digits")
    split = thin_unlabeled(config, dataset, draw_split(config, dataset, seed))
    others = split.unlabeled[~torch.isin(split.unlabeled, split.labeled)]
    labeled, unlabeled = (torch.bincount(dataset.train.labels[part], minlength=10) for part in (split.labeled, others))
    return split, labeled.tolist(), unlabeled.tolist()


def test_numbers_of_images_are_those_of_the_literature():
    assert long_tailed(1500, 100, 10) == PUBLISHED
    assert long_tailed(500, 50, 10)[-1] == 10
    assert long_tailed(500, 150, 10)[-1] == 3
    assert long_tailed(7, 1, 4) == [7, 7, 7, 7]
    assert long_tailed(3, 100, 3) == [3, 1, 1], "every class has an image"


@pytest.mark.parametrize("distribution", ["same", "reversed", "uniform"])
def test_unlabeled_images_follow_the_distribution(distribution):
    split, labeled, unlabeled = split_digits(replace(TAIL, unlabeled_distribution=distribution))
    assert labeled == [40, 28, 20, 14, 10, 7, 5, 3, 2, 2]
    same = [100, 71, 51, 36, 26, 18, 13, 9, 6, 5]
    assert unlabeled == {"same": same, "reversed": same[::-1], "uniform": [100] * 10}[distribution]
    parts = torch.cat([split.unlabeled, split.left_out])
    assert torch.equal(parts.sort().values, torch.arange(1437)), "every image is unlabelled or left out, never both"
    again = split_digits(replace(TAIL, unlabeled_distribution=distribution))[0]
    assert torch.equal(again.unlabeled, split.unlabeled)
    assert not torch.equal(
        split_digits(replace(TAIL, unlabeled_distribution=distribution), 1)[0].labeled, split.labeled
    )


def test_all_other_images_are_unlabeled_without_a_number_of_them():
    split, labeled, _ = split_digits(replace(TAIL, unlabeled_head=None))
    assert len(split.left_out) == 0
    assert sum(labeled) == len(split.labeled)
    assert len(split.unlabeled) == 1437


def test_the_split_is_read_again_for_the_same_data_only(tmp_path):
    split, _, _ = split_digits(TAIL)
    split.save(tmp_path / "split.json")
    dataset = load_dataset("digits")
    again = Split.load(tmp_path / "split.json", dataset)
    assert torch.equal(again.unlabeled, split.unlabeled)
    assert torch.equal(again.labeled, split.labeled)


def test_images_of_unknown_class_stay_in_the_unlabeled_set():
    labels = torch.tensor([0] * 9 + [1] * 9 + [-1] * 4)
    train = ImageSet(ArrayImages(torch.zeros(22, 1, 1, 1, dtype=torch.uint8)), labels)
    dataset = Dataset("toy", ("a", "b"), train)
    config = DataConfig("toy", labels_head=4, unlabeled_head=2, imbalance=2.0, include_labeled=False)
    split = thin_unlabeled(config, dataset, draw_split(config, dataset, 0))
    assert torch.bincount(labels[split.unlabeled] + 1).tolist() == [4, 2, 1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"labels": 40}, "data.labels=40 and data.labels_head=40"),
        ({"labels_head": None}, "data.imbalance=20: give data.labels_head"),
        ({"labels_head": None, "imbalance": 1.0}, "data.unlabeled_head=100: give data.labels_head"),
        ({"unlabeled_head": None, "unlabeled_distribution": "uniform"}, "give data.unlabeled_head"),
        ({"unlabeled_head": 120}, "images that are not labelled, but 120 are wanted"),
        ({"labels_head": 900}, "labelled images, but 900 are wanted"),
    ],
)
def test_contradictions_are_refused_in_one_line(wrong, words):
    with pytest.raises(NPMatchError, match=words):
        split_digits(replace(TAIL, **wrong))


def test_every_long_tailed_recipe_names_its_numbers():
    found = {name for name in RECIPES if "-lt-" in name}
    cifar = {f"cifar10-lt-{ratio}-{head}" for ratio in (50, 100, 150) for head in (500, 1500)}
    assert found == cifar | {"digits-lt-20", "fashion-mnist-lt-20"}
    data = resolve_config("cifar10-lt-100-1500").data
    assert (data.labels, data.labels_head, data.unlabeled_head, data.imbalance) == (None, 1500, 3000, 100)


def test_long_tailed_recipes_do_not_align_to_equal_shares():
    for recipe, aligned in (("digits-40", True), ("digits-lt-20", False)):
        assert resolve_config(recipe, algorithm="npmatch").algorithm.alignment is aligned
        assert resolve_config(recipe, algorithm="softmatch").algorithm.alignment is aligned


def test_balanced_means_at_most_twice_as_many():
    assert is_balanced([4, 8])
    assert not is_balanced([4, 9])
