"""Numbers at their bounds: certain predictions, none trusted, one class; values and gradients stay finite."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.heads import Memory
from npmatch.objectives.divergences import DIVERGENCES, Gaussian, skew_from_uncertainty
from npmatch.objectives.losses import cross_entropy_samples, entropy, masked_mean, sharpen
from npmatch.objectives.selection import Curriculum, WindowAlignment, align_to_uniform

BOUNDS = {
    "exactly certain": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
    "uniform": [[1 / 3, 1 / 3, 1 / 3]] * 2,
    "the smallest there is": [[1.0, 1e-45, 0.0], [1.0, 0.0, 1e-38]],
    "one class": [[1.0], [1.0]],
}


@pytest.mark.parametrize("case", BOUNDS)
def test_entropy_alignment_and_sharpening_are_finite_with_their_gradients(case):
    for function in (entropy, align_to_uniform, lambda p: sharpen(p, 0.5), lambda p: sharpen(p, 1e-3)):
        probs = torch.tensor(BOUNDS[case], requires_grad=True)
        value = function(probs)
        assert value.isfinite().all()
        value.sum().backward()
        assert probs.grad.isfinite().all()


def test_entropy_at_its_bounds_is_what_it_should_be():
    assert entropy(torch.tensor([1.0, 0.0])).item() == 0
    assert entropy(torch.tensor([1.0])).item() == 0
    assert entropy(torch.full((4,), 0.25)).item() == pytest.approx(torch.tensor(4.0).log().item())


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
@pytest.mark.parametrize("alpha", [0.0, 1e-30, 0.5, 1.0])
@pytest.mark.parametrize("std", [(0.1, 0.1), (0.1, 1e4), (1e4, 0.1)])  # the head's σ has the floor 0.1
@pytest.mark.parametrize("mean", [0.0, 1e3, -1e3])
def test_divergences_are_finite_at_the_bounds_with_their_gradients(name, alpha, std, mean):
    parts = [torch.full((8,), value, requires_grad=True) for value in (0.0, std[0], mean, std[1])]
    value = DIVERGENCES[name](Gaussian(*parts[:2]), Gaussian(*parts[2:]), torch.tensor(alpha))
    assert value.isfinite()
    value.backward()
    assert all(part.grad.isfinite().all() for part in parts)


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 100, width=32), st.floats(0, 100, width=32))
def test_skew_is_a_share_whatever_the_uncertainties(context, target):
    alpha = skew_from_uncertainty(torch.tensor(context), torch.tensor(target))
    assert 0 <= float(alpha) <= 1


@pytest.mark.parametrize("trusted", ["nothing", "everything"])
def test_means_with_nothing_and_everything_trusted(trusted):
    values = torch.tensor([1.0, 5.0], requires_grad=True)
    mean = masked_mean(values, torch.full((2,), trusted == "everything"))
    mean.backward()
    assert mean.item() == (3.0 if trusted == "everything" else 0.0)
    assert values.grad.isfinite().all()


def test_cross_entropy_of_logits_at_the_end_of_the_scale():
    logits = torch.tensor([[[1e4, -1e4], [3e38, -3e38]]], requires_grad=True)
    loss = cross_entropy_samples(logits, torch.tensor([0, 0]))
    assert loss.isfinite().all()
    loss.sum().backward()
    assert logits.grad.isfinite().all()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_curriculum_is_finite_with_one_class_few_images_and_any_confidence(classes, images, confident):
    curriculum = Curriculum(images, classes, 0.95)
    for sure in confident:
        index = torch.arange(images)
        curriculum.update(index, index % classes, torch.full((images,), sure))
        thresholds = curriculum.thresholds()
        assert thresholds.isfinite().all()
        assert (thresholds >= 0).all()
        assert (thresholds <= 0.95 + 1e-6).all()
    assert int(curriculum.counts.sum()) == images


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 8), st.integers(0, 2**31))
def test_windows_and_memories_are_finite_when_empty_and_when_certain(length, classes, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.eye(classes)[torch.randint(classes, (batch,), generator=generator)]
    window, memory = WindowAlignment(length, classes), Memory(length, 3, classes)
    embeddings = torch.randn(batch, 3, generator=generator)
    assert memory.read(embeddings, 1e-3).isfinite().all()
    for _ in range(3):
        aligned = window(probs)
        assert aligned.isfinite().all()
        torch.testing.assert_close(aligned.sum(-1), torch.ones(batch))
        memory.push(embeddings, probs)
        read = memory.read(embeddings, 0.2)
        assert read.isfinite().all()
        assert (read.sum(-1) <= 1 + 1e-5).all()
