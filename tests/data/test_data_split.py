"""Properties of a split, for any data set and seed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npmatch.data import ArrayImages, Dataset, ImageSet, Split, load_dataset, make_split
from npmatch.data.fingerprint import dataset_fingerprint
from npmatch.errors import NPMatchError


def dataset_of(labels: list[int], classes: int = 3) -> Dataset:
    pixels = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    names = tuple("abcdefgh"[:classes])
    return Dataset("toy", names, ImageSet(ArrayImages(pixels), torch.tensor(labels, dtype=torch.int64)))


@st.composite
def datasets(draw: st.DrawFn) -> tuple[Dataset, list[int]]:
    """2–5 classes of 3–12 images each and up to 10 unlabelled images, shuffled; with their labels."""
    classes = draw(st.integers(2, 5))
    labels = [label for label in range(classes) for _ in range(draw(st.integers(3, 12)))]
    labels = draw(st.permutations(labels + [-1] * draw(st.integers(0, 10))))
    return dataset_of(labels, classes), labels


@settings(max_examples=100, deadline=None)
@given(datasets(), st.integers(0, 2**40), st.data())
def test_a_chosen_number_of_labels(drawn: tuple[Dataset, list[int]], seed: int, data: st.DataObject) -> None:
    dataset, labels = drawn
    classes = len(dataset.class_names)
    count = data.draw(st.integers(classes, 3 * classes), "labels")
    include = data.draw(st.booleans(), "include_labeled")
    split = make_split(dataset, count, seed, include_labeled=include)
    chosen = split.labeled.tolist()
    assert len(set(chosen)) == len(chosen) == count
    per_class = Counter(labels[index] for index in chosen)
    assert set(per_class) == set(range(classes))  # every class, and no unlabelled image
    assert max(per_class.values()) - min(per_class.values()) == (count % classes > 0)
    everything = set(range(len(labels)))
    assert split.unlabeled.tolist() == sorted(everything if include else everything - set(chosen))
    assert len(split.validation) == 0
    again = make_split(dataset, count, seed, include_labeled=include)
    assert torch.equal(again.labeled, split.labeled)
    assert split.labeled.dtype == split.unlabeled.dtype == split.validation.dtype == torch.int64


@settings(max_examples=100, deadline=None)
@given(datasets(), st.integers(0, 2**40), st.floats(0.01, 0.99), st.booleans(), st.booleans())
def test_validation_images_are_not_trained_on(
    drawn: tuple[Dataset, list[int]], seed: int, share: float, every_label: bool, include: bool
) -> None:
    dataset, labels = drawn
    count = len(dataset.class_names)
    split = make_split(dataset, None if every_label else count, seed, share, include)
    held, chosen, unlabeled = (set(t.tolist()) for t in (split.validation, split.labeled, split.unlabeled))
    assert not held & (chosen | unlabeled)
    assert held | chosen | unlabeled == set(range(len(labels)))
    sizes, held_by_class = Counter(labels), Counter(labels[index] for index in held)
    assert -1 not in held_by_class
    for label in range(count):
        pool = sizes[label] if every_label else sizes[label] - 1
        assert 1 <= held_by_class[label] <= sizes[label] - 1
        assert abs(held_by_class[label] - share * pool) <= 1
    if every_label:
        assert chosen | held == {index for index, label in enumerate(labels) if label >= 0}


@settings(max_examples=100, deadline=None)
@given(datasets(), st.integers(0, 2**40), st.data(), st.booleans())
def test_a_number_of_validation_images_is_spread_in_proportion_to_the_classes(
    drawn: tuple[Dataset, list[int]], seed: int, data: st.DataObject, every_label: bool
) -> None:
    dataset, labels = drawn
    classes = len(dataset.class_names)
    free = {label: n - 1 for label, n in Counter(labels).items() if label >= 0}
    number = data.draw(st.integers(2, max(2, sum(free.values()))))
    if number > sum(free.values()):
        return
    split = make_split(dataset, None if every_label else classes, seed, number)
    held, chosen, unlabeled = (set(t.tolist()) for t in (split.validation, split.labeled, split.unlabeled))
    assert len(held) == number
    assert not held & (chosen | unlabeled)
    assert {labels[index] for index in chosen} == set(range(classes)), "every class keeps a label to learn from"
    for label, left in free.items():
        assert abs(sum(labels[index] == label for index in held) - number * left / sum(free.values())) < 1


def test_all_labels() -> None:
    split = make_split(dataset_of([0, -1, 1, 2, 2, -1]), None, seed=0)
    assert split.labeled.tolist() == [0, 2, 3, 4]
    assert split.unlabeled.tolist() == [0, 1, 2, 3, 4, 5]


def test_seeds_differ_and_draw_evenly() -> None:
    dataset = dataset_of([0, 1, 2] * 20)
    draws = [tuple(make_split(dataset, 7, seed).labeled.tolist()) for seed in range(600)]
    assert len(set(draws)) > 590
    times = Counter(index for draw in draws for index in draw)
    # Each of 60 images is expected 600·7/60 = 70 times, with a deviation of about 8.
    assert max(abs(times[index] - 70) for index in range(60)) < 40
    extra = Counter(label for draw in draws for label in range(3) if sum(i % 3 == label for i in draw) == 3)
    assert min(extra.values()) > 150  # 200 expected: the remainder goes to any class


def test_a_larger_label_set_contains_the_smaller() -> None:
    dataset = dataset_of([0, 1, 2] * 20)
    small, large = (set(make_split(dataset, count, seed=3).labeled.tolist()) for count in (6, 30))
    assert small < large


def test_the_split_of_a_seed_never_changes() -> None:
    # Recorded once: a change here means that published seeds draw other images.
    split = make_split(dataset_of([0, 1, 2] * 4), 5, seed=1, validation=0.3)
    assert split.labeled.tolist() == [2, 6, 7, 8, 9]
    assert split.validation.tolist() == [0, 4, 11]


def test_impossible_numbers_are_refused() -> None:
    dataset = dataset_of([0] * 5 + [1] * 2 + [2] * 5)
    with pytest.raises(NPMatchError, match="class 'b' has 2 labelled images, but 3 are wanted"):
        make_split(dataset, 9, seed=0)
    with pytest.raises(NPMatchError, match="labels=2: there are 3 classes"):
        make_split(dataset, 2, seed=0)
    with pytest.raises(NPMatchError, match="class 'c' has 0 labelled images"):
        make_split(dataset_of([0, 1, -1]), None, seed=0)
    with pytest.raises(NPMatchError, match=r"validation=1\.0: give a share"):
        make_split(dataset, None, seed=0, validation=1.0)
    with pytest.raises(NPMatchError, match=r"validation=2\.5: give a share"):
        make_split(dataset, None, seed=0, validation=2.5)
    with pytest.raises(NPMatchError, match="validation=10: only 9 labelled images are left"):
        make_split(dataset, 3, seed=0, validation=10)
    with pytest.raises(NPMatchError, match=r"validation=0\.5: no image is left"):
        make_split(dataset_of([0, 1, 2]), 3, seed=0, validation=0.5)


@pytest.mark.parametrize("include", [True, False])
def test_a_saved_split_is_loaded_unchanged(include: bool, tmp_path: Path) -> None:
    dataset = dataset_of([0, 1, 2, -1] * 500)
    split = make_split(dataset, 30, seed=5, validation=0.01, include_labeled=include)
    split.save(tmp_path / "split.json")
    assert (tmp_path / "split.json").stat().st_size < 1000  # it does not grow with the unlabelled set
    loaded = Split.load(tmp_path / "split.json", dataset)
    for name in ("labeled", "unlabeled", "validation"):
        assert torch.equal(getattr(loaded, name), getattr(split, name))
    assert (loaded.seed, loaded.include_labeled, loaded.fingerprint) == (5, include, split.fingerprint)
    counts = json.loads((tmp_path / "split.json").read_text())["counts"]
    assert counts == {
        "images": 2000,
        "labeled": 30,
        "unlabeled": len(split.unlabeled),
        "validation": len(split.validation),
    }


def test_a_split_of_other_data_is_refused(tmp_path: Path) -> None:
    dataset = dataset_of([0, 1, 2, -1] * 5)
    make_split(dataset, 3, seed=0).save(tmp_path / "split.json")
    with pytest.raises(NPMatchError, match=r"split\.json: this split was made for other data"):
        Split.load(tmp_path / "split.json", dataset_of([0, 1, 2, -1] * 6))
    assert len(Split.load(tmp_path / "split.json").labeled) == 3


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "null", '{"labeled": "x"}', b"\xff".decode("latin1"), "out of range"]
)
def test_a_damaged_split_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    if content == "out of range":
        make_split(dataset_of([0, 1, 2]), None, seed=0).save(path)
        content = path.read_text().replace("[0, 1, 2]", "[0, 1, 7]")
    path.write_text(content, encoding="latin1")
    with pytest.raises(NPMatchError, match="not a split written by npmatch"):
        Split.load(path)
    with pytest.raises(NPMatchError, match="no such file"):
        Split.load(tmp_path / "none.json")


def test_the_fingerprint_covers_what_a_split_depends_on() -> None:
    def variant(labels: list[int], classes: tuple[str, ...] = ("a", "b"), names: tuple[str, ...] = ()) -> str:
        dataset = dataset_of(labels)
        dataset.class_names, dataset.train.names = classes, list(names)
        return dataset_fingerprint(dataset)

    base = variant([0, 1])
    assert base == variant([0, 1])
    others = [
        variant([1, 0]),
        variant([0, 1, -1]),
        variant([0, 1], ("a", "c")),
        variant([0, 1], ("a", "b"), ("x.png", "y.png")),
        variant([0, 1], ("a", "b"), ("y.png", "x.png")),
        variant([0, 1], ("a", "b"), ("x.pngy.png", "")),
    ]
    assert len({base, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    ("part", "value"),
    [("labeled", [-1, 2]), ("labeled", [2, 2]), ("labeled", [1.5]), ("labeled", [[1], [2]]), ("labeled", 3),
     ("validation", [True]), ("labeled", [10**6]), ("counts", {"images": 10**5}), ("left_out_test", [10**6])],
)  # fmt: skip
def test_invalid_positions_are_refused(tmp_path, part, value):
    images = dataset_of([0, 1, 2] * 4)
    make_split(images, 6, seed=0).save(tmp_path / "split.json")
    content = json.loads((tmp_path / "split.json").read_text())
    (tmp_path / "split.json").write_text(json.dumps({**content, part: value}))
    with pytest.raises(NPMatchError, match=r"split\.json: (not a split written by npmatch|this split was made for)"):
        Split.load(tmp_path / "split.json", images)


def test_a_file_that_is_not_a_split_is_an_error_of_one_line(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\xe8\x0f" * 5000)
    (tmp_path / "config.json").write_text("{}")
    for name, message in [
        ("", "a folder; name a split's file"),
        ("config.json", r"config\.json: not a split written by npmatch \(KeyError: 'labeled'\)"),
        ("model.safetensors", r"model\.safetensors: not a split written by npmatch"),
        ("none.json", r"none\.json: no such file"),
        ("config.json/x", r"x: cannot be read \(Not a directory\)"),
    ]:
        with pytest.raises(NPMatchError, match=message) as raised:
            Split.load(tmp_path / name)
        assert len(str(raised.value)) < 300


def test_a_split_of_more_images_than_there_are_in_the_world_allocates_nothing(tmp_path):
    path = tmp_path / "split.json"
    make_split(dataset_of([0, 1, 2] * 4), 6, seed=0).save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "counts": {**content["counts"], "images": 2**35}}))
    with pytest.raises(NPMatchError, match=r"split\.json: not a split .* more than the 50,000,000 allowed"):
        Split.load(path)


def test_the_error_says_how_the_data_of_a_split_differ(tmp_path):
    make_split(dataset_of([0, 1, 2] * 4), 6, seed=0).save(tmp_path / "split.json")
    with pytest.raises(NPMatchError, match="other data: 12 training images, here are 15;"):
        Split.load(tmp_path / "split.json", dataset_of([0, 1, 2] * 5))
    with pytest.raises(NPMatchError, match="other data: labels, classes or file names differ;"):
        Split.load(tmp_path / "split.json", dataset_of([2, 1, 0] * 4))


@settings(max_examples=100, deadline=None)
@given(datasets(), st.integers(0, 2**40), st.floats(0.01, 0.99), st.booleans(), st.data())
def test_copies_of_held_out_images_are_not_trained_on(
    drawn: tuple[Dataset, list[int]], seed: int, share: float, every_label: bool, data: st.DataObject
) -> None:
    dataset, labels = drawn
    classes = len(dataset.class_names)
    numbers = data.draw(st.lists(st.integers(0, 4), min_size=len(labels), max_size=len(labels)), "pictures of a class")
    shown = [(i if k < 0 else k) % classes for i, k in enumerate(labels)]  # no picture has two labels
    picture = [classes * number + k for number, k in zip(numbers, shown, strict=True)]
    copies = [[i for i, one in enumerate(picture) if one == number] for number in set(picture)]
    own = [{picture[i] for i, one in enumerate(labels) if one == label} for label in range(classes)]
    assume(max(map(len, own)) > 1)  # one to train on and one to hold out
    split = make_split(dataset, None if every_label else classes, seed, share, copies=copies)
    held = {picture[i] for i in split.validation}
    assert not held & {picture[i] for i in [*split.labeled, *split.unlabeled]}
    per_class = Counter((labels[i], picture[i]) for i in split.validation)
    assert max(per_class.values()) == 1  # copies would count twice in the bounds that are computed from held-out labels
    held_copies = {i for i, one in enumerate(picture) if one in held} - set(split.validation.tolist())
    assert set(split.left_out.tolist()) == held_copies
    if every_label:
        trained = set(split.labeled.tolist())
        assert trained == {i for i, label in enumerate(labels) if label >= 0 and picture[i] not in held}


def test_all_labelled_images_can_be_asked_for_though_some_are_copies() -> None:
    split = make_split(dataset_of([0, 1, 2] * 4), 12, 0, copies=[[0, 3, 6, 9]])
    assert len(split.labeled) == 12


@pytest.mark.parametrize(
    ("arguments", "digest"),
    [
        ((40, 0, 0.0), "76d817d76843083f"),
        ((40, 3, 200), "27b0fb490fb30dcc"),
        ((None, 1, 0.2), "abe412c25cbd4c54"),
        ((100, 2, 0.1), "3b47891f822ef37b"),
    ],
)
def test_the_splits_of_published_data_stay_what_they_are(arguments: tuple[Any, ...], digest: str) -> None:
    split = make_split(load_dataset("digits"), *arguments)
    positions = [part.tolist() for part in (split.labeled, split.unlabeled, split.validation)]
    assert hashlib.sha256(json.dumps(positions).encode()).hexdigest()[:16] == digest
