"""CoMatch's smoothing, graphs and loss against explicit loops."""

import dataclasses
import math

import pytest
import torch

from npmatch.algorithms import check_algorithm
from npmatch.algorithms.check import BATCH, CLASSES, RATIO, make_algorithm, make_batch, take_steps
from npmatch.algorithms.comatch import CoMatch, pseudo_label_graph

U = BATCH * RATIO


def algorithm(**options) -> CoMatch:
    return make_algorithm(CoMatch, CoMatch.Config(embedding=5, **options))


def log_softmax(logits: list[float]) -> list[float]:
    total = math.log(sum(math.exp(v) for v in logits))
    return [v - total for v in logits]


def dot(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(v: list[float]) -> list[float]:
    return [x / math.sqrt(dot(v, v)) for x in v]


def predict_each(a, images) -> tuple[list[list[float]], list[list[float]]]:
    """Log-probabilities and unit embeddings of images, one by one."""
    features = [a.model.features(image[None]) for image in images]
    log_p = [log_softmax(a.model.head(f)[0].tolist()) for f in features]
    return log_p, [unit(a.projection(f)[0].tolist()) for f in features]


@pytest.mark.parametrize("options", [{}, {"bank": 16}, {"confidence": 0.2, "graph_threshold": 0.1, "window": 2}])
def test_it_passes_all_checks(options):
    assert check_algorithm(CoMatch, CoMatch.Config(**options)) is None


def test_the_pseudo_label_graph_against_loops():
    q = torch.softmax(3 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), -1)
    q[3] = q[5]
    q[5] = torch.tensor([1.0, 0.0, 0.0])
    rows, found = q.tolist(), pseudo_label_graph(q, 0.6).tolist()
    edges = 0
    for i in range(12):
        weights = [1.0 if i == j else dot(rows[i], rows[j]) for j in range(12)]
        weights = [w if w >= 0.6 else 0.0 for w in weights]
        edges += sum(w > 0 for w in weights) - 1
        assert found[i] == pytest.approx([w / sum(weights) for w in weights], rel=1e-5)
    assert 0 < edges < 12 * 11, "the case must have edges and gaps"


@pytest.mark.parametrize("warm", [0, 3])
def test_smoothing_and_loss_against_loops(warm):
    """A whole step computed again, with an empty memory and with one that three steps have filled."""
    a = algorithm(graph_threshold=0.3, unlabeled_weight=0.7, contrastive_weight=5.0, bank=60)
    take_steps(a, range(warm))
    a.model.eval()  # without batch statistics, so that images can be passed one by one
    batch = make_batch(a, seed=9)
    log_x, z_x = predict_each(a, batch.x)
    log_weak, z_weak = predict_each(a, batch.weak[0])
    log_strong, z_strong = predict_each(a, batch.strong[0])
    _, z_other = predict_each(a, batch.strong[1])

    held = min(warm * (BATCH + U), 60)
    memory_z, memory_p = a.memory.embeddings[:held].tolist(), a.memory.probs[:held].tolist()
    own = [sum(math.exp(row[k]) for row in log_weak) / U for k in range(CLASSES)]
    before = a.alignment.means[:warm].tolist()
    window = [(own[k] + sum(m[k] for m in before)) / (warm + 1) for k in range(CLASSES)]
    p, q = [], []
    for row, z in zip(log_weak, z_weak, strict=True):
        ratios = [math.exp(row[k]) / window[k] for k in range(CLASSES)]
        p.append([r / sum(ratios) for r in ratios])
        if held == 0:
            q.append(p[-1])
            continue
        near = [math.exp(dot(z, other) / 0.2) for other in memory_z]
        neighbours = [sum(w * other[k] for w, other in zip(near, memory_p, strict=True)) for k in range(CLASSES)]
        q.append([0.9 * p[-1][k] + 0.1 * neighbours[k] / sum(near) for k in range(CLASSES)])
    threshold = sorted(max(row) for row in q)[U // 2] - 1e-6  # half of them are confident enough
    a.config = dataclasses.replace(a.config, confidence=threshold)

    loss_x = -sum(row[y] for row, y in zip(log_x, batch.y.tolist(), strict=True)) / BATCH
    loss_u = -sum(dot(q[i], log_strong[i]) for i in range(U) if max(q[i]) >= threshold) / U
    loss_graph = 0.0
    for i in range(U):
        weights = [1.0 if i == j else dot(q[i], q[j]) for j in range(U)]
        weights = [w if w >= 0.3 else 0.0 for w in weights]
        log_near = log_softmax([dot(z_strong[i], z_other[j]) / 0.2 for j in range(U)])
        loss_graph -= dot(weights, log_near) / sum(weights) / U

    step = a.loss(batch, torch.tensor(0.5))
    assert step.logs["loss_labeled"].item() == pytest.approx(loss_x, rel=1e-4)
    assert step.logs["loss_unlabeled"].item() == pytest.approx(loss_u, rel=1e-4)
    assert step.logs["loss_contrastive"].item() == pytest.approx(loss_graph, rel=1e-4)
    assert step.loss.item() == pytest.approx(loss_x + 0.7 * loss_u + 5 * loss_graph, rel=1e-4)
    assert step.keep.tolist() == [max(row) >= threshold for row in q]
    assert step.pseudo.tolist() == [max(range(CLASSES), key=row.__getitem__) for row in q]

    # The memory took the batch: weak views with predictions before smoothing, labelled images with their labels.
    slots = [(warm * (BATCH + U) + i) % 60 for i in range(U + BATCH)]
    labels = [[float(k == y) for k in range(CLASSES)] for y in batch.y.tolist()]
    torch.testing.assert_close(a.memory.embeddings[slots], torch.tensor(z_weak + z_x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(a.memory.probs[slots], torch.tensor(p + labels), rtol=1e-4, atol=1e-5)


def test_targets_carry_no_gradient_and_one_pass_sees_all_views():
    a, sizes = algorithm(confidence=0.0, contrastive_weight=0.0), []
    a.model.backbone.norm.register_forward_hook(lambda module, x, out: sizes.append(len(out)))
    f = torch.randn(U, 8, requires_grad=True)
    assert not a.pseudo_label(f[:BATCH], torch.zeros(BATCH, dtype=torch.long), f).requires_grad
    a.loss(make_batch(a), torch.tensor(0.5))
    assert sizes == [BATCH + 3 * U]


def test_memory_and_window_are_saved_and_the_projection_is_not_part_of_the_model():
    a, b = algorithm(), algorithm()
    take_steps(a, range(3))
    b.load_state_dict(a.state_dict())
    z = torch.randn(4, 5)
    assert torch.equal(b.memory.read(z, 0.2), a.memory.read(z, 0.2))
    assert torch.equal(b.alignment.mean(), a.alignment.mean())
    assert int(b.memory.pushed) == 3 * (BATCH + U)
    assert not any("projection" in name or "memory" in name for name in a.model.state_dict())
