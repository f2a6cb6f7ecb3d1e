"""The clusters agree with a plain loop over images, and the surest images of a cluster are of its class."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from npmatch.baselines.clusters import RATE, SHARPNESS, Clusters, half_whitening, surest

K, F = 3, 8


@pytest.fixture
def features():
    """Unit features of 90 images of three classes, and their labels."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(90) % K
    return normalize(torch.randn(90, F, generator=draw) + 4 * torch.eye(F)[y], dim=-1), y


@pytest.fixture
def few(features):
    """The same labels, of which only the first two of each class are known."""
    given = features[1].clone()
    given[2 * K :] = -1
    return given


def test_half_whitening_is_that_of_the_singular_value_decomposition(features):
    f = features[0].double()
    centred = (f - f.mean(0)).numpy()
    _, s, v = np.linalg.svd(centred, full_matrices=False)
    expected = (centred @ v.T) / (s**2 / len(f)) ** (3 / 8)
    found = torch.from_numpy(centred) @ half_whitening(torch.from_numpy(centred))
    # A direction has no sign, so images are compared by their products.
    assert (found @ found.T).numpy() == pytest.approx(expected @ expected.T, rel=1e-6)


def test_means_move_as_in_a_loop_over_images(features, few):
    f = features[0]
    clusters = Clusters(steps=4).fit(f.numpy(), few.numpy())
    z = normalize((f - f.mean(0)) @ half_whitening(f - f.mean(0)), dim=-1).double().numpy()
    means = [z[(few == c).numpy()].mean(0) for c in range(K)]
    for _ in range(4):
        sums, weights = np.zeros((K, F)), np.zeros(K)
        for image, label in zip(z, few.tolist(), strict=True):
            near = [np.exp(-SHARPNESS * np.square(image - mean).sum()) for mean in means]
            p = np.eye(K)[label] if label >= 0 else np.array(near) / sum(near)
            sums, weights = sums + p[:, None] * image, weights + p
        means = [mean + RATE * (sums[c] / weights[c] - mean) for c, mean in enumerate(means)]
    assert clusters.means.numpy() == pytest.approx(np.array(means), abs=1e-5)


def test_the_surest_images_are_of_their_class_and_never_the_labelled_ones(features, few):
    f, y = features
    found, labels = surest(f, few, each=5)
    assert labels.bincount().tolist() == [5, 5, 5]
    assert (labels == y[found]).all()
    assert (few[found] == -1).all()
    assert len(found.unique()) == len(found)


def test_labelled_images_at_the_edge_are_outvoted_by_the_cluster():
    """A labelled image of one class lies near the other cluster; the surest images are right all the same."""
    draw = torch.Generator().manual_seed(1)
    centres = torch.eye(F)[:2]
    y = torch.arange(200) % 2
    f = centres[y] + 0.15 * torch.randn(200, F, generator=draw)
    f[0] = 0.4 * centres[0] + 0.6 * centres[1]  # labelled 0
    given = torch.full((200,), -1)
    given[:2] = y[:2]
    assert (given[:2] == torch.tensor([0, 1])).all()
    found, labels = surest(f, given, each=20)
    assert (labels == y[found]).all()


def test_a_small_cluster_gives_what_it_has_and_classes_keep_their_numbers(features):
    f = features[0][:8]
    given = torch.tensor([2, 5, -1, -1, -1, -1, -1, -1])
    found, labels = surest(f, given, each=20)
    assert sorted(found.tolist()) == [2, 3, 4, 5, 6, 7]
    assert set(labels.tolist()) <= {2, 5}
    assert surest(f[:2], given[:2], each=20)[0].numel() == 0


def test_images_that_are_all_alike_do_no_harm():
    f, given = normalize(torch.ones(6, F), dim=-1), torch.tensor([0, 1, -1, -1, -1, -1])
    clusters = Clusters().fit(f.numpy(), given.numpy())
    assert clusters.predict_proba(f.numpy()) == pytest.approx(np.full((6, 2), 0.5))
    assert len(surest(f, given, each=2)[0]) <= 4
