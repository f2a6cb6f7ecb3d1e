"""The processes that predict from their context alone, against loops over images, points and samples."""

import copy
import math

import pytest
import torch

from npmatch.heads import AttentiveProcessHead, ContextHead, KernelProcessHead, TrustedPoints, other_images
from npmatch.heads.context import Context, evenly, resample
from npmatch.objectives.losses import mean_prediction

F, K, M, T, N = 6, 3, 4, 5, 7
Y = torch.tensor([0, 0, 1, 1, 2, 2, 2])
TRUSTED = torch.tensor([False, True, False, False, False, True, True])


def kernel() -> KernelProcessHead:
    torch.manual_seed(0)
    return KernelProcessHead(F, K, width=M, samples=T, points=30, scale=50.0, bandwidth=0.3).double().eval()


def attentive() -> AttentiveProcessHead:
    torch.manual_seed(0)
    return AttentiveProcessHead(F, K, width=M, samples=T, points=30, bandwidth=0.3).double().eval()


HEADS = pytest.mark.parametrize("make", [kernel, attentive])


def points(n: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, F, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def context() -> Context:
    features = points(N, seed=2)
    torch.manual_seed(3)
    return Context(features, Y, resample(T, N, features), TRUSTED)


def about_the_mean(head, c, *features):
    labeled = c.features[~c.trusted]
    return [head.embedding.weight @ (f - sum(labeled) / len(labeled)) for f in features]


def cosine(head, f, i, c) -> float:
    a, b = about_the_mean(head, c, f, c.features[i])
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def kernel_between(head, f, i, c) -> float:
    labeled = c.features[~c.trusted]
    size = sum(float(g @ g) for g in about_the_mean(head, c, *labeled)) / len(labeled)
    a, b = about_the_mean(head, c, f, c.features[i])
    return math.exp(-float((a - b) @ (a - b)) / size / (2 * 0.3))


def loops_of_kernel(head, features, c, allowed):
    out = torch.zeros(T, len(features), K, dtype=torch.float64)
    for t in range(T):
        for n, f in enumerate(features):
            alpha = []
            for k in range(K):
                alpha.append(1.0)
                for kind in (False, True):
                    same = [i for i in range(N) if c.y[i] == k and bool(c.trusted[i]) == kind and allowed[n, i]]
                    mass = sum(float(c.weights[t, i]) * kernel_between(head, f, i, c) for i in same)
                    alpha[k] += 50 * mass / max(1, len(same))
            out[t, n] = torch.tensor([math.log(a / sum(alpha)) for a in alpha])
    return out


def loops_of_attention(head, features, c, allowed):
    out = torch.zeros(T, len(features), K, dtype=torch.float64)
    for t in range(T):
        for n, f in enumerate(features):
            use = [i for i in range(N) if allowed[n, i]]
            weight = [float(c.weights[t, i]) * math.exp(cosine(head, f, i, c) / 0.3) for i in use]
            values = [head.value(c.y[i]) for i in use]
            r = sum(a * v for a, v in zip(weight, values, strict=True)) / sum(weight)
            out[t, n] = head.decoder(r).log_softmax(-1)
    return out


@pytest.mark.parametrize(("make", "loops"), [(kernel, loops_of_kernel), (attentive, loops_of_attention)])
@pytest.mark.parametrize("leaves_some_out", [False, True])
@torch.no_grad()
def test_the_equations_with_loops(make, loops, leaves_some_out):
    head, c, features = make(), context(), points(4)
    allowed = torch.ones(4, N, dtype=torch.bool)
    if leaves_some_out:
        allowed[0, 2:4], allowed[1, 0], allowed[3, 4:6] = False, False, False
    found = head.log_probs(features, c, allowed if leaves_some_out else None)
    torch.testing.assert_close(found, loops(head, features, c, allowed))
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(T, 4, dtype=torch.float64))


@torch.no_grad()
def test_far_from_all_labelled_images_the_kernels_prediction_is_uniform():
    head = KernelProcessHead(F, K, width=F, samples=T, points=30, scale=1e4, bandwidth=0.05).double().eval()
    head.embedding.weight.copy_(torch.eye(F))
    near = torch.eye(F, dtype=torch.float64)[:3].repeat_interleave(2, 0)  # two points of each class
    head.set_context(near, torch.arange(3).repeat_interleave(2))
    at_labels, far = head.predict(near), head.predict(9 * near[:1])  # beyond a labelled image, in its own direction
    assert (at_labels.label == torch.arange(3).repeat_interleave(2)).all()
    assert at_labels.entropy.max() < 0.05
    torch.testing.assert_close(far.probs, torch.full((1, K), 1 / K, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(far.entropy, torch.tensor([math.log(K)], dtype=torch.float64))


@torch.no_grad()
def test_the_kernels_vacuity_tells_a_strange_image_from_one_between_two_classes():
    head = KernelProcessHead(2, 2, width=2, samples=T, points=30, scale=1e4, bandwidth=0.3).double().eval()
    head.embedding.weight.copy_(torch.eye(2))
    head.set_context(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]).double(), torch.tensor([0, 1]))
    between, strange = head.predict(torch.tensor([[0.0, 0.0], [0.0, 9.0]]).double()), kernel().predict(points(1))
    assert between.entropy.min() > 0.5
    assert between.outlier[0] < 0.05
    assert between.outlier[1] > 0.99
    assert strange.outlier.tolist() == [1.0], "without a context nothing is known"
    evidence = math.exp(-3 / 0.6)  # of each of the two points, which are at distance 1, and so is ρ
    assert float(between.outlier[0]) == pytest.approx(2 / (2 + 1e4 * 2 * evidence))


@torch.no_grad()
def test_the_vacuity_with_loops():
    head, features = kernel(), points(4)
    head.set_context(points(N, seed=2), Y, TRUSTED)
    c, expected = head.context(), []
    for f in features:
        evidence = 0.0
        for i in range(N):
            same = sum(bool(c.y[j] == c.y[i] and c.trusted[j] == c.trusted[i]) for j in range(N))
            evidence += kernel_between(head, f, i, c) ** 3 / same
        expected.append(K / (K + 50 * evidence))
    torch.testing.assert_close(head.predict(features).outlier, torch.tensor(expected, dtype=torch.float64))


@HEADS
@torch.no_grad()
def test_predictions_are_of_each_image_alone_and_the_contexts_order_does_not_matter(make):
    head, c, features = make(), context(), points(5)
    whole = head.log_probs(features, c)
    torch.testing.assert_close(torch.cat([head.log_probs(f[None], c) for f in features], 1), whole)
    order = torch.tensor([6, 2, 0, 5, 1, 3, 4])
    shuffled = Context(c.features[order], c.y[order], c.weights[:, order], c.trusted[order])
    torch.testing.assert_close(head.log_probs(features, shuffled), whole)


@torch.no_grad()
def test_permuted_labels_permute_the_kernels_prediction():
    """Nothing but the context knows a class."""
    head, c, features = kernel(), context(), points(5)
    moved = head.log_probs(features, c._replace(y=(c.y + 1) % K))
    torch.testing.assert_close(moved, head.log_probs(features, c).roll(1, -1))


@HEADS
@torch.no_grad()
def test_a_context_is_saved_and_loaded_with_the_weights_and_dropped_by_training(make):
    head, features = make(), points(5)
    uniform = head.predict(features)
    torch.testing.assert_close(uniform.probs, torch.full((5, K), 1 / K, dtype=torch.float64))
    head.set_context(points(N, seed=2), Y, TRUSTED)
    prediction = head.predict(features)
    assert prediction.disagreement.max() > 0
    other = make()
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.predict(features).probs, prediction.probs)
    assert len(other.train().state_dict()["context_labels"]) == 0
    assert other.context_weights.shape == (T, 0)


@HEADS
@pytest.mark.parametrize("trusted", [TRUSTED, torch.zeros_like(TRUSTED)])
@torch.no_grad()
def test_the_prediction_is_that_of_the_equations_frozen_or_not(make, trusted):
    head, features = make(), points(5)
    head.set_context(points(N, seed=2), Y, trusted)
    expected = mean_prediction(head.log_probs(features, head.context()).exp())
    found = head.predict(features)
    for name in ("probs", "entropy", "disagreement"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    head.freeze()
    assert_equal(head.predict(features), found)
    assert not any("frozen" in name for name in head.state_dict())


@HEADS
@torch.no_grad()
def test_a_frozen_head_predicts_anew_from_another_context_other_weights_and_after_training(make):
    head, other, features = make(), make(), points(5)
    head.set_context(points(N, seed=2), Y, TRUSTED)
    head.freeze()
    other.embedding.weight.mul_(torch.arange(1, M + 1)[:, None])
    other.set_context(points(N, seed=6), Y.flip(0))
    expected = other.predict(features)
    head.set_context(points(N, seed=6), Y.flip(0))
    assert not torch.equal(head.predict(features).probs, expected.probs), "the weights are still others"
    head.freeze()
    head.load_state_dict(other.state_dict())
    assert_equal(head.predict(features), expected)
    head.freeze()
    assert_equal(copy.deepcopy(head).predict(features), expected)
    uniform = torch.full((5, K), 1 / K, dtype=torch.float64)
    torch.testing.assert_close(head.train().eval().predict(features).probs, uniform)
    head.freeze()
    torch.testing.assert_close(head.predict(features).probs, uniform)


@HEADS
@torch.no_grad()
def test_what_is_frozen_moves_with_the_head(make):
    head, features = make(), points(5)
    head.set_context(points(N, seed=2), Y, TRUSTED)
    head.freeze()
    probs = head.predict(features).probs
    assert head.float().predict(features.float()).probs.dtype == torch.float32
    torch.testing.assert_close(head.predict(features.float()).probs.double(), probs, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_the_kernel_is_finite_where_all_labelled_images_are_one():
    head = kernel().float()
    one, other = points(1).float(), points(1, seed=2).float()
    head.set_context(torch.cat([one, one, one, other]), torch.tensor([0, 1, 2, 2]), torch.tensor([0, 0, 0, 1]).bool())
    found = head.predict(torch.cat([one, other, 1000 * other]))
    assert all(part.isfinite().all() for part in (found.probs, found.entropy, found.disagreement, found.outlier))


def assert_equal(found, expected):
    for name in ("probs", "entropy", "disagreement", "outlier"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a is b is None or torch.equal(a, b)


@HEADS
@torch.no_grad()
def test_a_large_context_is_reduced_to_as_many_of_each_class(make):
    head = make()
    y = torch.cat([torch.zeros(100), torch.ones(4), torch.full((40,), 2)]).long()
    head.set_context(points(len(y)), y)
    assert torch.bincount(head.context_labels).tolist() == [10, 4, 10]
    head.set_context(points(len(y)), y, torch.arange(len(y)) % 2 == 1)
    assert torch.bincount(head.context_labels).tolist() == [20, 4, 20], "ten labelled and ten trusted ones"
    kept = evenly(y, 10)
    assert kept[:10].tolist() == list(range(0, 100, 10)), "evenly spaced, so that the order of files does not matter"


def test_a_labelled_image_is_predicted_from_others_unless_its_class_has_no_other():
    image = torch.tensor([4, 7, 4, 9])
    y = torch.tensor([0, 0, 0, 1])
    expected = [[0, 1, 0, 1], [1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 1]]
    assert other_images(image, y).int().tolist() == expected


@HEADS
def test_resampling_has_mean_one(make):
    head = make()
    assert isinstance(head, ContextHead)
    torch.manual_seed(0)
    assert resample(200, 500, points(1)).mean() == pytest.approx(1, abs=0.01)


@HEADS
def test_gradients_are_finite_at_the_contexts_own_points(make):
    head, c = make(), context()
    features = c.features.clone().requires_grad_()
    head.log_probs(features, c._replace(features=features)).sum().backward()
    assert features.grad.isfinite().all()


@HEADS
@torch.no_grad()
def test_trusted_points_join_the_context_and_empty_slots_do_not_count(make):
    head, features = make(), points(5)
    labeled, y = points(3, seed=4), torch.arange(3)
    trusted = TrustedPoints(8, F).double()
    empty = head.context_of(labeled, y, trusted)
    alone = Context(labeled, y, empty.weights[:, :3], torch.zeros(3, dtype=torch.bool))
    torch.testing.assert_close(head.log_probs(features, empty), head.log_probs(features, alone))
    trusted.push(points(4, seed=5), torch.tensor([2, 0, 1, 2]), torch.tensor([9, 8, 7, 6]), torch.arange(4) != 1)
    assert trusted.images[:3].tolist() == [9, 7, 6]
    context = head.context_of(labeled, y, trusted)
    assert context.y[:6].tolist() == [0, 1, 2, 2, 1, 2]
    assert (context.weights > 0).sum(1).tolist() == [6] * T
    six = Context(context.features[:6], context.y[:6], context.weights[:, :6], context.trusted[:6])
    torch.testing.assert_close(head.log_probs(features, context), head.log_probs(features, six))
