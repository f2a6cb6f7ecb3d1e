"""Suggestions prefer uncertain images, avoid near-duplicates, and are deterministic."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import npmatch
from npmatch.errors import NPMatchError
from npmatch.labelling.suggest import NEAR_DUPLICATE, choose_diverse, suggest, usual_distance
from npmatch.runs.open import open_run_data
from npmatch.types import Prediction


def choose(entropy, features, count, taken=None):
    features = torch.as_tensor(features, dtype=torch.float32)
    return choose_diverse(torch.as_tensor(entropy), lambda positions: features[positions], count, taken)


def test_of_images_alike_only_one_is_chosen():
    groups = torch.arange(5).repeat_interleave(20)  # five motifs, each in twenty almost equal images
    corners = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)) * 10
    features = corners[groups] + 0.001 * torch.randn(100, 8, generator=torch.Generator().manual_seed(2))
    picks = choose(torch.linspace(1, 2, 100), features, 30)
    assert sorted(groups[[pick.position for pick in picks]].tolist()) == [0, 1, 2, 3, 4]
    assert picks[0].position == 99  # the most uncertain of all
    seen = choose(torch.linspace(1, 2, 100), features, 30, taken=features[groups == 2][:1])
    assert sorted(groups[[pick.position for pick in seen]].tolist()) == [0, 1, 3, 4]


def test_where_the_most_uncertain_are_all_alike_the_next_follow():
    alike = torch.zeros(600, 4)
    others = torch.eye(4)
    entropy = torch.cat([torch.full((600,), 2.0), torch.tensor([0.4, 0.3, 0.2, 0.1])])
    picks = choose(entropy, torch.cat([alike, others]), 4)
    assert picks[0].position == 0
    assert {pick.position for pick in picks[1:]} <= {600, 601, 602, 603}
    assert len(picks) == 4


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 25), st.integers(0, 1000))
def test_choices_are_distinct_and_their_distances_are_the_true_ones(images, count, seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(images, 3)).astype(np.float32)
    uncertainty = rng.random(images)
    picks = choose(uncertainty, features, count)
    positions = [pick.position for pick in picks]
    assert len(set(positions)) == len(positions) <= min(count, images)
    pool = np.argsort(-uncertainty, kind="stable")[: 10 * count]
    usual = usual_distance(torch.from_numpy(features[pool]))
    for number, pick in enumerate(picks[1:], 1):
        distances = np.linalg.norm(features[positions[:number]] - features[pick.position], axis=1)
        assert pick.nearest == positions[int(distances.argmin())]
        assert pick.distance * usual == pytest.approx(distances.min(), rel=1e-4)
        assert pick.distance > NEAR_DUPLICATE


def test_a_beginning_of_the_list_is_the_shorter_list():
    features = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    entropy = torch.rand(100, generator=torch.Generator().manual_seed(1))
    assert choose(entropy, features, 30)[:10] == choose(entropy, features, 10)


@pytest.fixture(scope="module")
def run(tiny_run):
    return npmatch.load(tiny_run.folder, "cpu"), open_run_data(tiny_run.folder).unlabeled()


def test_suggestions_agree_with_the_prediction(run):
    classifier, left = run
    found = suggest(classifier, left.names, left.images, 20, "uncertainty")
    prediction: Prediction = classifier.predict(left.images.take(torch.arange(len(left.names))))
    expected = sorted(range(len(left.names)), key=lambda i: -prediction.entropy[i].item())[:20]
    assert [s.position for s in found] == expected
    for s in found:
        first, second = prediction.probs[s.position].argsort(descending=True)[:2].tolist()
        assert (s.name, s.predicted, s.runner_up) == (left.names[s.position], str(first), str(second))
        assert s.uncertainty == pytest.approx(prediction.entropy[s.position].item())
        assert s.reason == f"either {first} ({s.confidence:.0%}) or {second} ({s.runner_up_confidence:.0%})"


def test_every_strategy_is_deterministic_and_differs_from_the_others(run):
    classifier, left = run
    first, again = (
        {name: suggest(classifier, left.names, left.images, 15, name) for name in ("diverse", "uncertainty", "random")}
        for _ in range(2)
    )
    assert first == again
    chosen = [tuple(s.name for s in found) for found in first.values()]
    assert len(set(chosen)) == 3
    assert all(s.nearest in chosen[0] for s in first["diverse"][1:])
    other = suggest(classifier, left.names, left.images, 15, "random", seed=1)
    assert [s.name for s in other] != list(chosen[2])


def test_suggestions_do_not_resemble_images_labelled_since(run):
    classifier, left = run
    plain = suggest(classifier, left.names, left.images, 5)
    known = left.images.take(torch.tensor([plain[0].position]))
    found = suggest(classifier, left.names, left.images, 5, known=npmatch.data.ArrayImages(known))
    assert plain[0].name not in [s.name for s in found]
    assert "an image labelled since" in found[0].reason


def test_invalid_arguments_are_one_line(run):
    classifier, left = run
    with pytest.raises(NPMatchError, match="unknown strategy 'divers'; did you mean 'diverse'"):
        suggest(classifier, left.names, left.images, 5, "divers")
    with pytest.raises(NPMatchError, match="ask for 1 or more"):
        suggest(classifier, left.names, left.images, 0)
    assert suggest(classifier, [], left.images, 5) == []
