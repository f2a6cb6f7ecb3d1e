"""The baselines agree with what their definitions say, computed by other means, and take whatever features come."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from npmatch.baselines import BASELINES, FOLDS, out_of_fold_error

K, F = 3, 6


@pytest.fixture
def clusters():
    """Features of three overlapping classes with labels: 12 labelled, 60 unlabelled, 40 others."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(112) % K
    f = torch.randn(112, F, generator=draw) + 1.5 * torch.eye(F)[y]
    return f[:12], y[:12], f[12:72], f[72:], y[72:]


def predict(name, clusters, scale=1.0):
    f_labeled, y, f_unlabeled, f, _ = clusters
    return BASELINES[name].predict(scale * f_labeled, y, scale * f, K, scale * f_unlabeled)


@pytest.mark.parametrize("name", BASELINES)
def test_probabilities_are_whole_better_than_chance_and_blind_to_the_scale_of_features(name, clusters):
    found = predict(name, clusters)
    assert found.probs.shape == (40, K)
    assert found.probs.sum(-1) == pytest.approx(torch.ones(40))
    assert found.entropy == pytest.approx(torch.distributions.Categorical(found.probs).entropy(), abs=1e-5)
    assert (found.label == clusters[-1]).float().mean() > 0.5
    assert predict(name, clusters, scale=700.0).probs == pytest.approx(found.probs, abs=2e-3)


def test_the_probe_minimises_the_penalised_likelihood(clusters):
    f_labeled, y, _, f, _ = clusters
    x = normalize(f_labeled, dim=-1).double()
    weight = torch.zeros(K, F, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(K, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([weight, bias], max_iter=2000, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure():
        search.zero_grad()
        loss = 300 * cross_entropy(x @ weight.T + bias, y, reduction="sum") + weight.square().sum() / 2
        loss.backward()
        return loss

    search.step(closure)
    expected = (normalize(f, dim=-1).double() @ weight.T + bias).softmax(-1).detach()
    assert predict("probe", clusters).probs == pytest.approx(expected.float(), abs=0.02)  # scikit-learn stops early


def test_neighbours_vote_with_the_inverse_of_their_cosine_distance(clusters):
    f_labeled, y, _, f, _ = clusters
    distance = 1 - normalize(f.double(), dim=-1) @ normalize(f_labeled.double(), dim=-1).T
    nearest = distance.topk(5, largest=False)
    votes = torch.zeros(len(f), K, dtype=torch.float64).scatter_add(1, y[nearest.indices], 1 / nearest.values)
    expected = votes / votes.sum(-1, keepdim=True)
    assert predict("neighbours", clusters).probs == pytest.approx(expected.float(), abs=1e-4)


def test_spreading_is_the_fixed_point_of_its_graph_and_reaches_new_images_by_their_neighbours(clusters):
    f_labeled, y, f_unlabeled, f, _ = clusters
    nodes = normalize(torch.cat([f_labeled, f_unlabeled]).double(), dim=-1)
    n = len(nodes)
    graph = torch.zeros(n, n, dtype=torch.float64)
    graph.scatter_(1, torch.cdist(nodes, nodes).topk(5, largest=False).indices, 1.0)
    graph.fill_diagonal_(0)
    degree = graph.sum(0).sqrt()
    smooth = graph / degree / degree[:, None]
    given = torch.zeros(n, K, dtype=torch.float64)
    given[torch.arange(len(y)), y] = 1
    spread = torch.linalg.solve(torch.eye(n, dtype=torch.float64) - 0.5 * smooth, 0.5 * given)
    spread /= spread.sum(-1, keepdim=True)
    nearest = torch.cdist(normalize(f.double(), dim=-1), nodes).topk(5, largest=False).indices
    expected = spread[nearest].mean(1)
    assert predict("spreading", clusters).probs == pytest.approx(expected.float(), abs=0.01)


def test_images_that_no_label_reaches_are_uncertain():
    f_labeled, y = torch.eye(3)[[0, 0]], torch.tensor([0, 0])
    noise = 0.01 * torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    here, far = f_labeled[:1] + noise[:40], torch.eye(3)[[2]] + noise[40:]
    found = BASELINES["spreading"].predict(f_labeled, y, torch.cat([here[:1], far[:1]]), 2, torch.cat([here, far]))
    assert found.probs.tolist() == [[1, 0], [0.5, 0.5]]


@pytest.mark.parametrize("name", BASELINES)
def test_a_class_without_labels_is_never_predicted_and_few_images_are_enough(name):
    f_labeled, y = torch.eye(4)[:2], torch.tensor([0, 2])
    found = BASELINES[name].predict(f_labeled, y, torch.eye(4)[:2], 4, torch.eye(4)[:0])
    assert found.probs[:, [1, 3]].max() == 0
    if name != "spreading":  # where every image is every other's neighbour, all are alike
        assert found.label.tolist() == [0, 2]


def test_the_estimate_is_the_error_of_scikit_learns_folds(clusters):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    f, y = clusters[3], clusters[4]
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=7)
    found = cross_val_predict(LogisticRegression(C=300, max_iter=1000), normalize(f, dim=-1).numpy(), y, cv=folds)
    expected = 100 * np.mean(found != y.numpy())
    assert out_of_fold_error(BASELINES["probe"], f, y, K, seed=7) == pytest.approx(expected)


def test_a_class_with_one_label_is_left_out_of_the_estimate():
    f = torch.eye(4)[[0, 0, 0, 1, 1, 2]] + 0.01 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 0, 0, 1, 1, 3])
    assert out_of_fold_error(BASELINES["probe"], f, y, 4, seed=0) == 0
    assert out_of_fold_error(BASELINES["probe"], f[[0, 3, 5]], y[[0, 3, 5]], 4, seed=0) is None
