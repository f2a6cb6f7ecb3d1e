"""The weighted estimate is unbiased, by enumeration and by repetition; its interval covers at every sample size."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import binomtest

from npmatch.metrics.weighted_sample import (
    UNIFORM,
    betting_interval,
    draw_weighted,
    lure_weights,
    sampling_weights,
    weighted_error,
)


def made_up_pool(seed, n=400, rate=0.1):
    rng = np.random.default_rng(seed)
    doubt = rng.beta(1.5 * rate, 1.5 * (1 - rate), n)
    return doubt, (rng.random(n) < doubt).astype(float)


def sample(doubt, wrong, count, seed):
    draws = [draw for _, draw in zip(range(count), draw_weighted(doubt, (), seed), strict=False)]
    at = [draw.position for draw in draws]
    return wrong[at], doubt[at], np.array([d.q for d in draws]), np.array([d.smallest_q for d in draws])


@pytest.mark.parametrize("doubt", [np.zeros(4), np.array([0.9, 0.1, 0.5, 0.2])])
def test_the_mean_over_all_ordered_samples_is_the_error(doubt):
    loss, weight = np.array([1.0, 0, 1, 0]), np.array([0.4, 0.3, 0.2, 0.1])
    expected = total = 0.0
    for order in permutations(range(4), 2):
        first, second = order
        q = np.array([weight[first], weight[second] / (1 - weight[first])])
        total += q.prod()
        expected += q.prod() * weighted_error(loss[[*order]], doubt[[*order]], q, 4, doubt.mean())
    assert total == pytest.approx(1)
    assert expected == pytest.approx(0.5)


def test_equal_probabilities_give_the_plain_mean():
    n, m = 50, 20
    q = 1 / (n - np.arange(m))
    assert lure_weights(q, n) == pytest.approx(np.ones(m))
    wrong = (np.arange(m) % 4 == 0).astype(float)
    assert weighted_error(wrong, np.zeros(m), q, n, 0.0) == pytest.approx(wrong.mean())


def test_the_whole_pool_gives_its_error():
    doubt, wrong = made_up_pool(0, n=30, rate=0.3)
    losses, s, q, smallest = sample(doubt, wrong, 30, seed=1)
    assert weighted_error(losses, s, q, 30, doubt.mean()) == pytest.approx(wrong.mean())
    assert betting_interval(losses, q, smallest, 30) == pytest.approx((wrong.mean(), wrong.mean()), abs=1e-9)


def test_probabilities_follow_the_rule_and_the_images_come_by_them():
    doubt = np.array([0.0, 0.5, 0.1, 0.9])
    r = sampling_weights(doubt)
    mean = doubt.mean()
    assert r == pytest.approx(np.sqrt(doubt * (1 - 2 * mean) + mean**2))
    q = (1 - UNIFORM) * r / r.sum() + UNIFORM / 4
    firsts = [next(draw_weighted(doubt, (), seed)) for seed in range(4000)]
    assert {(one.position, round(one.q, 12)) for one in firsts} == {(k, round(q[k], 12)) for k in range(4)}
    assert np.bincount([one.position for one in firsts], minlength=4) / 4000 == pytest.approx(q, abs=0.03)
    assert all(one.smallest_q == pytest.approx(q.min()) for one in firsts)


def test_a_sample_goes_on_where_it_ended():
    doubt, _ = made_up_pool(3)
    whole = [draw for _, draw in zip(range(20), draw_weighted(doubt, (), 7), strict=False)]
    begun = [draw.position for draw in whole[:12]]
    rest = [draw for _, draw in zip(range(8), draw_weighted(doubt, begun, 7), strict=False)]
    assert rest == whole[12:]
    assert len({draw.position for draw in whole}) == 20


def test_a_model_without_doubt_is_sampled_evenly():
    draw = next(draw_weighted(np.zeros(10), (), 0))
    assert (draw.q, draw.smallest_q) == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize("doubts", ["true", "useless"])
def test_the_estimate_is_unbiased_and_the_interval_covers_at_all_sizes_at_once(doubts):
    covered, misses, repetitions = 0, [], 300
    for seed in range(repetitions):
        doubt, wrong = made_up_pool(seed)
        if doubts == "useless":
            doubt = np.random.default_rng(seed).random(len(doubt))
        losses, s, q, smallest = sample(doubt, wrong, 40, seed)
        misses.append(weighted_error(losses, s, q, len(doubt), doubt.mean()) - wrong.mean())
        found = [betting_interval(losses[:m], q[:m], smallest[:m], len(doubt)) for m in (5, 10, 20, 40)]
        covered += all(low <= wrong.mean() <= high for low, high in found)
        assert found[-1].high <= found[0].high + 1e-9  # the limits never widen
        assert found[-1].low >= found[0].low - 1e-9
    assert abs(np.mean(misses)) < 3 * np.std(misses) / np.sqrt(repetitions)
    assert binomtest(covered, repetitions, 0.9, "less").pvalue > 0.01


def test_no_draw_says_nothing():
    assert betting_interval(np.zeros(0), np.zeros(0), np.zeros(0), 10) == (0, 1)
