"""Embeddings of class names: what the embedded file covers, and a user's files, also broken and hostile ones."""

import pickle
from importlib.resources import files

import numpy as np
import pytest
import torch
from timm.data import ImageNetInfo

from npmatch.algorithms.label_embeddings import load_label_embeddings
from npmatch.data.sources.benchmarks import read_digits
from npmatch.data.sources.cifar import CIFAR10, CIFAR100
from npmatch.errors import NPMatchError

STL10 = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]
FASHION = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


def cosine(first, second):
    a, b = load_label_embeddings([first, second])
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


@pytest.mark.parametrize(
    "names",
    [
        read_digits().class_names,
        CIFAR10.class_names,
        CIFAR100.class_names,
        STL10,
        FASHION,
        ImageNetInfo().label_names(),
        ["zero", "nine"],
    ],
    ids=["digits", "cifar10", "cifar100", "stl10", "fashion", "imagenet", "words"],
)
def test_the_embedded_file_covers_every_source(names):
    vectors = load_label_embeddings(names)
    assert vectors.shape == (len(names), 384)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(len(names)), rtol=0, atol=2e-3)


def test_the_embedded_file_is_small():
    assert len((files("npmatch") / "assets" / "label_embeddings.npz").read_bytes()) < 1.2e6


@pytest.mark.parametrize(
    ("name", "near", "far"),
    [
        ("cat", "dog", "truck"),
        ("automobile", "truck", "frog"),
        ("oak_tree", "pine_tree", "keyboard"),
        ("3", "4", "airplane"),
        ("n02123045", "cat", "ship"),  # tabby
        ("3", "three", "four"),
    ],
)
def test_near_names_are_nearer_than_far_ones(name, near, far):
    assert cosine(name, near) > cosine(name, far) + 0.1


def test_a_users_npz(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, names=np.array(["Red Kite", "jay"]), vectors=np.array([[1, 2], [3, 4]], dtype=np.float16))
    assert load_label_embeddings(["jay", "red_kite"], str(path)).tolist() == [[3, 4], [1, 2]]


@pytest.mark.parametrize("header", ["", "4 2\n"], ids=["glove", "word2vec"])
def test_a_text_of_word_vectors(tmp_path, header):
    path = tmp_path / "vectors.txt"
    path.write_text(header + "red 1 0\nKite 0 1\npine_tree 5 5\nred 9 9\n", encoding="utf-8")
    # A vector of the whole name first, else the mean of its known words; of two lines for a word the first counts.
    names = ["RED", "red-kite", "Pine tree", "unheard kite"]
    assert load_label_embeddings(names, str(path)).tolist() == [[1, 0], [0.5, 0.5], [5, 5], [0, 1]]


@pytest.mark.parametrize("file", [None, "table.npz", "table.txt"])
def test_an_unknown_class_is_named_with_the_key_to_set(tmp_path, file):
    path = None if file is None else str(tmp_path / file)
    if file == "table.npz":
        np.savez(path, names=np.array(["cat"]), vectors=np.ones((1, 3)))
    elif file == "table.txt":
        (tmp_path / file).write_text("cat 1 2 3\n")
    with pytest.raises(NPMatchError, match=r"'Quxling' and 1 more has no embedding.*algorithm\.label_embeddings"):
        load_label_embeddings(["cat", "Quxling", "zorp"], path)


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


@pytest.mark.parametrize("array", ["names", "vectors"])
def test_a_pickle_inside_an_npz_is_not_run(tmp_path, array):
    mark = tmp_path / "was_run"
    arrays = {"names": np.array(["cat"]), "vectors": np.ones((1, 3))}
    arrays[array] = np.array([Hostile(mark)], dtype=object)
    np.savez(tmp_path / "hostile.npz", allow_pickle=True, **arrays)
    assert not mark.exists()
    with pytest.raises(NPMatchError, match=r"hostile\.npz: not an \.npz with"):
        load_label_embeddings(["cat"], str(tmp_path / "hostile.npz"))
    assert not mark.exists()
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Hostile(mark)))
    with pytest.raises(NPMatchError, match="bare"):
        load_label_embeddings(["cat"], str(tmp_path / "bare.npz"))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"words": np.array(["cat"])}, "not an .npz with"),
        ({"names": np.array(["cat", "dog"]), "vectors": np.ones((1, 3))}, "N × D"),
        ({"names": np.array([1]), "vectors": np.ones((1, 3))}, "N texts"),
        ({"names": np.array(["cat"]), "vectors": np.array(["x"])}, "not an .npz with"),
        ({"names": np.array(["cat"]), "vectors": np.full((1, 3), np.nan)}, "finite"),
    ],
)
def test_a_broken_npz_is_refused(tmp_path, arrays, complaint):
    np.savez(tmp_path / "broken.npz", **arrays)
    with pytest.raises(NPMatchError, match=complaint):
        load_label_embeddings(["cat"], str(tmp_path / "broken.npz"))


def test_a_single_array_named_npz_is_refused(tmp_path):
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, np.ones((1, 3)))
    with pytest.raises(NPMatchError, match=r"single\.npz: not an \.npz with"):
        load_label_embeddings(["cat"], str(tmp_path / "single.npz"))


@pytest.mark.parametrize("text", ["cat one two\n", "dog 1 2\ncat 1 2 3\n", "cat\n", "cat nan 1\n"])
def test_a_broken_text_is_refused_with_its_line(tmp_path, text):
    (tmp_path / "broken.txt").write_text(text)
    with pytest.raises(NPMatchError, match=r"broken\.txt, line \d"):
        load_label_embeddings(["dog", "cat"], str(tmp_path / "broken.txt"))


@pytest.mark.parametrize("name", ["nothing.npz", "nothing.txt"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(NPMatchError, match=f"{name}: cannot be read"):
        load_label_embeddings(["cat"], str(tmp_path / name))
