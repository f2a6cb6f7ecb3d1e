"""UPS against its definition: selection by hand, the loss by loops and row selection, repeatable predictions."""

import math

import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

import npmatch
from npmatch.algorithms.check import check_algorithm, make_algorithm, take_steps
from npmatch.algorithms.check import make_batch as random_batch
from npmatch.algorithms.ups import UPS
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.types import Task


@pytest.mark.parametrize("options", [{}, {"dropout": 0.0}, {"samples": 1}, {"max_std": 0.0}, {"confidence": 0.3}])
def test_it_passes_all_checks(options):
    assert check_algorithm(UPS, UPS.Config(**options)) is None


# Three passes of six images. The chosen class's mean and standard deviation (n − 1) are beside each.
PASSES = torch.tensor(
    [
        [[0.97, 0.02, 0.01], [0.97, 0.02, 0.01], [0.97, 0.02, 0.01]],  # 0.97, 0: likely and certain
        [[0.99, 0.005, 0.005], [0.99, 0.005, 0.005], [0.93, 0.035, 0.035]],  # 0.97, 0.035: likely, certain enough
        [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.88, 0.06, 0.06]],  # 0.96, 0.069: likely, not certain
        [[0.5, 0.46, 0.04], [0.5, 0.46, 0.04], [0.5, 0.46, 0.04]],  # 0.5, 0: certain, not likely; class 2: negative
        [[0.46, 0.5, 0.04], [0.46, 0.5, 0.04], [0.49, 0.5, 0.01]],  # 0.5, 0; class 2 has a deviation of 0.017
        [[0.06, 0.34, 0.6], [0.06, 0.34, 0.6], [0.06, 0.34, 0.6]],  # 0.6, 0; no class is unlikely enough
    ]
).transpose(0, 1)
POSITIVE = [True, True, False, False, False, False]
NEGATIVE = [(3, 2)]  # image 2's other classes have 0.035 > 0.005; images 0 and 1 have a positive label


def learnt(algorithm: UPS) -> UPS:
    """All classes are learnt, so that the curriculum's thresholds are the confidence itself."""
    algorithm.curriculum.update(torch.arange(6), torch.arange(6) % 3, torch.ones(6, dtype=torch.bool))
    return algorithm


def test_labels_are_selected_where_likely_and_certain():
    pseudo, positive, negative = learnt(make_transparent(UPS)).select(PASSES, torch.arange(6))
    assert pseudo.tolist() == [0, 0, 0, 0, 1, 2]
    assert positive.tolist() == POSITIVE
    assert [tuple(pair) for pair in negative.nonzero().tolist()] == NEGATIVE


def test_the_curriculum_counts_confident_certain_images_and_sets_the_thresholds():
    algorithm = make_transparent(UPS)
    assert algorithm.select(PASSES, torch.arange(6)).positive.tolist() == [True, True, False, True, True, True]
    assert algorithm.curriculum.assigned.tolist() == [0, 0, 3, 3, 3, 3]  # 3: unused
    # β = 2/4 for class 0, so τ_c = 0.95 · 0.5 / 1.5 = 0.317; the other classes still have a threshold of 0.
    assert algorithm.curriculum.thresholds().tolist() == pytest.approx([0.95 / 3, 0, 0])


def test_a_class_that_was_chosen_is_never_a_negative_label():
    algorithm = make_transparent(UPS, negative_confidence=0.4, max_std=0.001)
    passes = torch.tensor([[[0.337, 0.329, 0.334]], [[0.333, 0.333, 0.334]]])  # deviations of 0.003: all are unlikely
    pseudo, positive, negative = algorithm.select(passes, torch.arange(1))
    assert pseudo.tolist() == [0]
    assert positive.tolist() == [False]
    assert negative.tolist() == [[False, True, True]]


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_loss_by_loops_and_row_selection(weight, monkeypatch):
    algorithm = learnt(make_transparent(UPS, dropout=0.0, unlabeled_weight=0.5, negative_weight=weight))
    monkeypatch.setattr(algorithm, "sample", lambda u_weak: PASSES)
    strong = [softmax(row) for row in STRONG]
    positive = sum(-math.log(strong[i][0]) for i in (0, 1)) / len(STRONG)  # both have pseudo-label 0
    negative = sum(-math.log(1 - strong[i][c]) for i, c in NEGATIVE) / len(NEGATIVE)
    step = algorithm.loss(make_batch(X, Y, WEAK, STRONG), torch.tensor(0.0))
    expected = mean_cross_entropy(X, Y) + 0.5 * positive + weight * negative
    assert step.keep.tolist() == POSITIVE
    assert step.logs["loss_negative"].item() == pytest.approx(negative, rel=1e-5)
    assert step.loss.item() == pytest.approx(expected, rel=1e-5)


def test_negative_learning_averages_over_pairs(monkeypatch):
    """By hand: classes 1 and 2 of one image, class 0 of another."""
    algorithm = learnt(make_transparent(UPS, dropout=0.0, negative_confidence=0.35, confidence=0.99))
    passes = torch.tensor([[[0.4, 0.3, 0.3], [0.2, 0.38, 0.42]]] * 2)
    monkeypatch.setattr(algorithm, "sample", lambda u_weak: passes)
    strong = [[math.log(2.0), math.log(1.0), math.log(1.0)], [math.log(3.0), 0.0, 0.0]]  # (½ ¼ ¼), (3/5 1/5 1/5)
    step = algorithm.loss(make_batch(X, Y, WEAK[:2], strong), torch.tensor(0.0))
    expected = -(math.log(0.75) + math.log(0.75) + math.log(0.4)) / 3
    assert step.logs["loss_negative"].item() == pytest.approx(expected, rel=1e-5)


def cnn(**options) -> UPS:
    torch.manual_seed(0)
    task = Task(("a", "b", "c", "d"), num_labeled=4, num_unlabeled=40)
    return UPS(make_backbone(BackboneConfig("cnn", width=8), 1), task, UPS.Config(**options)).train()


def test_passes_differ_and_their_deviation_selects():
    samples = cnn(samples=5).sample(torch.randn(9, 1, 8, 8))
    assert samples.shape == (5, 9, 4)
    assert all(not torch.equal(samples[0], other) for other in samples[1:])
    spread = samples.std(0).gather(1, samples.mean(0).argmax(-1)[:, None])[:, 0]
    between = float(spread.median())
    kept = cnn(max_std=between).select(samples, torch.arange(9)).positive
    assert torch.equal(kept, spread <= between)
    assert 0 < kept.sum() < 9


def test_without_dropout_passes_agree_and_deviations_are_zero():
    samples = cnn(samples=3, dropout=0.0).sample(torch.randn(9, 1, 8, 8))
    assert torch.equal(samples[0], samples[1])
    for passes in (samples, samples[:1]):
        assert cnn(max_std=0.0).select(passes, torch.arange(9)).positive.all()


def test_batch_norm_counts_a_step_once():
    algorithm = cnn()
    before = {name: b.clone() for name, b in algorithm.named_buffers() if "running" in name}
    algorithm.sample(torch.randn(9, 1, 8, 8))
    assert all(torch.equal(b, before[name]) for name, b in algorithm.named_buffers() if name in before)
    take_steps(algorithm, range(1))
    counts = [int(b) for name, b in algorithm.named_buffers() if name.endswith("num_batches_tracked")]
    assert counts == [1, 1, 1]


def test_a_timm_backbone_learns_and_predicts():
    torch.manual_seed(0)
    task = Task(("a", "b", "c", "d"), num_labeled=4, num_unlabeled=40)
    algorithm = UPS(make_backbone(BackboneConfig("timm:resnet18"), 1), task, UPS.Config(samples=2)).train()
    step = take_steps(algorithm, range(1))[0]
    assert step.loss.isfinite()
    with torch.no_grad():
        assert algorithm.eval().predict(random_batch(algorithm).x).probs.shape == (6, 4)


def test_a_saved_model_predicts_as_the_trained_one(tmp_path):
    settings = {"training.iterations": 3, "training.batch": 8, "training.unlabeled_ratio": 2, "backbone.width": 4}
    settings |= {"algorithm.samples": 3, "algorithm.dropout": 0.2}
    name = "npmatch.algorithms.ups:UPS"
    run = npmatch.fit("digits-40", algorithm=name, out=tmp_path / "run", device="cpu", quiet=True, overrides=settings)
    import pyarrow.parquet as pq

    table = pq.read_table(run.folder / "predictions" / "test.parquet")
    held_out = npmatch.data.load_dataset("digits").test
    prediction = npmatch.load(run.folder, device="cpu").predict(held_out.images.take(torch.arange(len(held_out))))
    written = torch.tensor(table["probabilities"].to_pylist())
    torch.testing.assert_close(prediction.probs, written, rtol=1e-4, atol=1e-5)
    assert prediction.disagreement.max() > 0


def test_predictions_are_the_same_after_more_draws():
    algorithm = make_algorithm(UPS).eval()
    x = random_batch(algorithm).x
    first = algorithm.predict(x).probs
    torch.rand(7)
    assert torch.equal(algorithm.predict(x).probs, first)
