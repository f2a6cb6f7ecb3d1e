"""NP-Match's step against the paper, computed with loops and row selection."""

import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from npmatch.algorithms import NPMatch, check_algorithm
from npmatch.algorithms.check import make_algorithm, make_batch, take_steps
from npmatch.heads import other_images
from npmatch.heads.context import Context
from npmatch.objectives import fairness
from npmatch.objectives.divergences import js_geometric, js_geometric_dual, kl
from npmatch.objectives.losses import fairness_loss, per_prediction


def algorithm(**options) -> NPMatch:
    return make_algorithm(NPMatch, NPMatch.Config(**options))


@pytest.mark.parametrize(
    ("targets", "divergence", "alignment"),
    list(itertools.product(["all", "trusted", "split"], ["js", "js_dual", "kl", "renyi"], [False, True])),
)
def test_every_reading_passes_all_checks(targets, divergence, alignment):
    config = NPMatch.Config(targets=targets, divergence=divergence, alignment=alignment, max_entropy=5.0)
    assert check_algorithm(NPMatch, config) is None


@pytest.mark.parametrize("weak_norm", ["own", "running"])
def test_weak_views_in_their_own_pass_pass_all_checks(weak_norm):
    config = NPMatch.Config(weak_norm=weak_norm, decoder_width="features", average="logits", alpha=0.5)
    assert check_algorithm(NPMatch, config) is None


@pytest.mark.parametrize("process", ["attentive", "kernel"])
@pytest.mark.parametrize("weak_norm", ["joint", "running"])
def test_processes_that_predict_from_the_context_pass_all_checks(process, weak_norm):
    config = NPMatch.Config(process=process, weak_norm=weak_norm, max_entropy=5.0, alignment=True, scale=10.0)
    assert check_algorithm(NPMatch, config) is None


# Every value of an option meets every gate; the other options take turns.
@pytest.mark.parametrize(
    ("process", "targets", "unlabeled_mean", "alignment", "adjustment", "max_entropy"),
    [
        ("paper", "all", "trusted", "window", 0.0, None),
        ("paper", "trusted", "all", False, 1.0, 1.3),
        ("paper", "split", None, True, 0.0, None),
        ("attentive", "all", "all", "window", 1.0, None),
        ("kernel", "all", "trusted", False, 0.0, 1.3),
    ],
)
@pytest.mark.parametrize("gate", ["curriculum", "fixed", "freematch", "softmatch"])
def test_every_gate_passes_all_checks(gate, process, targets, unlabeled_mean, alignment, adjustment, max_entropy):
    config = NPMatch.Config(
        gate=gate,
        process=process,
        targets=targets,
        unlabeled_mean=unlabeled_mean,
        alignment=alignment,
        adjustment=adjustment,
        max_entropy=5.0 if gate in ("curriculum", "fixed") else max_entropy,
        confidence=0.26,  # of four classes: some images pass the fixed threshold
        fairness_weight=0.1,
        decay=0.9,
        window=2,
        scale=10.0,
    )
    assert check_algorithm(NPMatch, config) is None


@pytest.mark.parametrize("process", ["paper", "attentive", "kernel"])
def test_images_that_are_unlike_labelled_ones_are_not_trusted(process):
    config = NPMatch.Config(process=process, known_share=0.9, max_entropy=5.0, confidence=0.0, scale=10.0)
    assert check_algorithm(NPMatch, config) is None
    a = algorithm(process=process, known_share=0.9, max_entropy=5.0, confidence=0.0, scale=10.0)
    batch = make_batch(a, seed=1)
    far = torch.arange(len(batch.index)) % 2 == 0
    views = tuple(torch.where(far[:, None, None, None], 1e4 * view, view) for view in batch.weak)
    a.model.eval()  # batch norm would make the others look unlike too
    step = a.loss(batch._replace(weak=views), torch.tensor(0.5))
    assert not step.keep[far].any()
    assert step.keep[~far].any()


def test_what_an_option_is_without_a_value_depends_on_the_gate():
    found = {
        gate: (NPMatch.Config(gate=gate).max_entropy, NPMatch.Config(gate=gate).unlabeled_mean)
        for gate in ("curriculum", "fixed", "freematch", "softmatch")
    }
    assert found == {
        "curriculum": (0.4, "trusted"),
        "fixed": (0.4, "trusted"),
        "freematch": (None, "trusted"),
        "softmatch": (None, "all"),
    }
    given = NPMatch.Config(gate="softmatch", max_entropy=0.7, unlabeled_mean="trusted")
    assert (given.max_entropy, given.unlabeled_mean) == (0.7, "trusted")


def test_without_new_options_the_state_is_that_of_earlier_checkpoints():
    assert {key for key in algorithm().state_dict() if not key.startswith("model.")} == {
        "curriculum.assigned",
        "curriculum.counts",
    }


@pytest.mark.parametrize("process", ["attentive", "kernel"])
@pytest.mark.parametrize("unlabeled_mean", ["trusted", "all"])
def test_the_loss_from_the_context_with_row_selection(process, unlabeled_mean):
    a = algorithm(
        process=process,
        context="labeled",
        unlabeled_mean=unlabeled_mean,
        scale=10.0,
        bandwidth=0.5,
        unlabeled_weight=0.7,
    )
    a.model.eval()
    head, batch = a.model.head, make_batch(a, seed=1)
    torch.manual_seed(3)
    weights_weak, weights = torch.empty(10, 6).exponential_(), torch.empty(10, 6).exponential_()
    weak, x, strong = (a.model.features(v) for v in (batch.weak[0], batch.x, batch.strong[0]))
    unlabeled = torch.zeros(6, dtype=torch.bool)
    p = head.log_probs(weak, Context(x, batch.y, weights_weak, unlabeled)).exp().mean(0)
    u = torch.distributions.Categorical(probs=p).entropy()
    a.gate.max_entropy = float(u.detach().median())
    keep = u < a.gate.max_entropy
    pseudo, context = p.argmax(-1), Context(x, batch.y, weights, unlabeled)
    others = other_images(batch.labeled, batch.y)
    loss_x = -head.log_probs(x, context, others)[:, torch.arange(6), batch.y].mean()
    trusted = head.log_probs(strong[keep], context)
    loss_u = -trusted[:, torch.arange(int(keep.sum())), pseudo[keep]].mean()
    if unlabeled_mean == "all":
        loss_u = loss_u * float(keep.float().mean())

    torch.manual_seed(3)
    step = a.loss(batch, torch.tensor(0.0))
    torch.testing.assert_close(step.loss, loss_x + 0.7 * loss_u)
    assert torch.equal(step.pseudo, pseudo)
    assert torch.equal(step.keep, keep)


@pytest.mark.parametrize("targets", ["all", "trusted", "split"])
@pytest.mark.parametrize("divergence", ["js", "js_dual", "kl"])
@pytest.mark.parametrize("unlabeled_mean", ["trusted", "all"])
def test_loss_is_equation_9_with_loops_and_row_selection(targets, divergence, unlabeled_mean):
    """A whole step computed again: rows selected instead of masked, Python loops over T and n, points concatenated."""
    a = algorithm(targets=targets, divergence=divergence, divergence_weight=0.5, unlabeled_mean=unlabeled_mean)
    a.model.eval()  # without batch statistics, so that images can be passed one by one
    head, batch = a.head, make_batch(a, seed=1)
    a.curriculum.update(torch.arange(20), torch.arange(20) % 4, torch.ones(20, dtype=torch.bool))
    a.curriculum.threshold = 0.256

    torch.manual_seed(3)
    noise_weak, noise = torch.randn(10, 2), torch.randn(10, 2)
    weak, x, strong = (
        torch.stack([a.model.features(i[None])[0] for i in v]) for v in (batch.weak[0], batch.x, batch.strong[0])
    )
    p = torch.stack([head.infer(weak, noise_weak[t : t + 1])[0].softmax(-1) for t in range(10)]).mean(0)
    u = torch.distributions.Categorical(probs=p).entropy()
    a.gate.max_entropy = float(u.detach().median())  # half of them are certain enough
    pseudo = p.argmax(-1)
    thresholds = a.curriculum.thresholds()
    keep = torch.tensor([bool(p[i].max() > thresholds[pseudo[i]] and u[i] < a.gate.max_entropy) for i in range(len(p))])
    assert 0 < keep.sum() < len(keep), "the case must have both trusted and untrusted images"

    h_x = torch.stack([head.encode_latent(x[i : i + 1], batch.y[i : i + 1])[0] for i in range(len(x))])
    h_u = head.encode_latent(strong, pseudo)
    target_rows = {"all": torch.cat([h_x, h_u]), "trusted": torch.cat([h_x, h_u[keep]]), "split": h_u[keep]}[targets]
    q_c, q_t = head.q_z(h_x.mean(0)), head.q_z(target_rows.mean(0))
    r = head.encode_deterministic(x, batch.y).mean(0)
    z_t = q_t.mean + q_t.std * noise
    z_x = q_c.mean + q_c.std * noise if targets == "split" else z_t
    logits_x = torch.stack([head.decode(x, z[None], r)[0] for z in z_x])
    logits_u = torch.stack([head.decode(strong, z[None], r)[0] for z in z_t])
    loss_x = torch.stack([F.cross_entropy(logits, batch.y) for logits in logits_x]).mean()
    loss_u = torch.stack([F.cross_entropy(logits[keep], pseudo[keep], reduction="sum") for logits in logits_u]).mean()
    loss_u = loss_u / {"trusted": keep.sum(), "all": len(keep)}[unlabeled_mean]

    def mean_entropy(probs):
        return torch.distributions.Categorical(probs=probs).entropy()

    e_x, e_u = mean_entropy(logits_x.softmax(-1).mean(0)), mean_entropy(logits_u.softmax(-1).mean(0))
    e_t = {"all": torch.cat([e_x, e_u]), "trusted": torch.cat([e_x, e_u[keep]]), "split": e_u[keep]}[targets].mean()
    alpha = (e_x.mean() / (e_x.mean() + e_t)).detach()
    d = {
        "js": js_geometric(q_c, q_t, alpha),
        "js_dual": js_geometric_dual(q_c, q_t, alpha),
        "kl": kl(q_t, q_c),
    }
    expected = loss_x + loss_u + 0.5 * d[divergence]

    torch.manual_seed(3)
    step = a.loss(batch, torch.tensor(0.0))
    assert torch.equal(step.pseudo, pseudo)
    assert torch.equal(step.keep, keep)
    torch.testing.assert_close(step.logs["alpha"], alpha, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(step.loss, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("targets", ["all", "trusted", "split"])
@pytest.mark.parametrize("unlabeled_mean", ["trusted", "all"])
def test_weights_of_softmatch_count_wherever_trusted_images_do(targets, unlabeled_mean):
    """A step with soft weights w computed again with loops: Σ w·v over images takes the place of a mask."""
    a = algorithm(gate="softmatch", targets=targets, unlabeled_mean=unlabeled_mean, divergence="kl", decay=0.0)
    a.model.eval()
    with torch.no_grad():
        a.head.classifier.weight.mul_(5)  # so that confidences differ
    head, batch = a.head, make_batch(a, seed=1)
    torch.manual_seed(3)
    noise_weak, noise = torch.randn(10, 2), torch.randn(10, 2)
    weak, x, strong = (a.model.features(v) for v in (batch.weak[0], batch.x, batch.strong[0]))
    p = head.infer(weak, noise_weak).softmax(-1).mean(0).detach()
    confidence, pseudo = p.max(-1)
    sigma = float(confidence.std())
    w = [math.exp(-2 * (min(float(c - confidence.mean()), 0.0) / sigma) ** 2) for c in confidence]
    assert min(w) < 0.5 < max(w) == 1

    h_x, h_u = head.encode_latent(x, batch.y), head.encode_latent(strong, pseudo)
    weights_x = [0.0 if targets == "split" else 1.0] * len(x)
    weights_u = [1.0] * len(w) if targets == "all" else w
    rows, weights = [*h_x, *h_u], weights_x + weights_u
    q_c = head.q_z(h_x.mean(0))
    q_t = head.q_z(sum(wi * row for wi, row in zip(weights, rows, strict=True)) / sum(weights))
    z_t = q_t.mean + q_t.std * noise
    z_x = q_c.mean + q_c.std * noise if targets == "split" else z_t
    r = head.encode_deterministic(x, batch.y).mean(0)
    loss_x = torch.stack([F.cross_entropy(logits, batch.y) for logits in head.decode(x, z_x, r)]).mean()
    log_p_u = head.decode(strong, z_t, r).log_softmax(-1)
    losses = [-log_p_u[:, i, pseudo[i]].mean() for i in range(len(w))]
    loss_u = sum(wi * loss for wi, loss in zip(w, losses, strict=True))
    loss_u = loss_u / (len(w) if unlabeled_mean == "all" else sum(w))

    torch.manual_seed(3)
    step = a.loss(batch, torch.tensor(0.0))
    assert torch.equal(step.pseudo, pseudo)
    assert step.keep.tolist() == pytest.approx(w, rel=1e-4)
    torch.testing.assert_close(step.loss, loss_x + loss_u + 0.01 * kl(q_t, q_c), rtol=1e-4, atol=1e-5)
    assert int(a.head.latent_bank.filled) == 1 + len(x) + len(w), "no image is left out"


@pytest.mark.parametrize("process", ["paper", "attentive"])
def test_fairness_is_added_for_the_mean_prediction_of_trusted_strong_views(process, monkeypatch):
    """The same step twice, with and without the loss: its value is FreeMatch's, of what the head said."""
    seen = {}

    def noting(logits, keep, target):
        seen.update(p=logits.softmax(-1), keep=keep, target=target)
        return fairness_loss(logits, keep, target)

    monkeypatch.setattr(fairness, "fairness_loss", noting)
    steps = {}
    for weight in (0.0, 0.3):
        a = algorithm(process=process, gate="freematch", fairness_weight=weight, decay=0.9, scale=10.0)
        steps[weight] = take_steps(a, range(2), update=lambda loss: None)[-1]
        assert (a.fairness is None) == (weight == 0) == ("loss_fairness" not in steps[weight].logs)
    value = steps[0.3].logs["loss_fairness"]
    torch.testing.assert_close(steps[0.3].loss, steps[0.0].loss + 0.3 * value)
    assert torch.equal(seen["keep"], steps[0.3].keep)
    torch.testing.assert_close(seen["p"].sum(-1), torch.ones(18))
    # The averages of fairness are those of the gate, as nothing is aligned.
    torch.testing.assert_close(a.fairness.class_probs.value, a.gate.class_probs.value)
    torch.testing.assert_close(seen["target"], per_prediction(a.gate.class_probs.value, a.fairness.histogram.value))


def test_permuting_the_batch_leaves_the_loss_and_permutes_pseudo_labels():
    batch = make_batch(algorithm(), seed=2)
    order_x, order_u = torch.randperm(len(batch.x)), torch.randperm(len(batch.index))
    permuted = batch._replace(
        x=batch.x[order_x],
        y=batch.y[order_x],
        weak=(batch.weak[0][order_u],),
        strong=(batch.strong[0][order_u],),
        index=batch.index[order_u],
    )
    steps = []
    for b in (batch, permuted):
        a = algorithm(max_entropy=5.0)
        torch.manual_seed(5)
        steps.append(a.loss(b, torch.tensor(0.0)))
    torch.testing.assert_close(steps[0].loss, steps[1].loss)
    assert torch.equal(steps[0].pseudo[order_u], steps[1].pseudo)
    assert torch.equal(steps[0].keep[order_u], steps[1].keep)
    torch.testing.assert_close(steps[0].logs["kl"], steps[1].logs["kl"])


def test_the_uncertainty_gate_closes():
    step = algorithm(max_entropy=0.0).loss(make_batch(algorithm()), torch.tensor(0.0))
    assert not step.keep.any()
    assert step.logs["loss_unlabeled"] == 0


def pseudo_label(a: NPMatch, probs: list[list[float]], monkeypatch) -> tuple[list[int], list[bool]]:
    """Pseudo-labels, and which are trusted, where the head predicts `probs` for unlabelled images 0, 1, …"""
    monkeypatch.setattr(a.head, "infer", lambda features, noise: torch.tensor([probs]).log())
    pseudo, keep = a.pseudo_label(torch.zeros(len(probs), 8), torch.arange(len(probs)))
    return pseudo.tolist(), keep.tolist()


def test_the_curriculum_counts_what_is_confident_and_certain(monkeypatch):
    a = algorithm(max_entropy=0.15)
    probs = [[0.99, 0.004, 0.003, 0.003], [0.01, 0.96, 0.015, 0.015], [0.1, 0.1, 0.7, 0.1]]  # 0.07, 0.21, 0.94 nats
    assert pseudo_label(a, probs, monkeypatch) == ([0, 1, 2], [True, False, False])
    assert a.curriculum.assigned[:3].tolist() == [0, 4, 4]  # 4: unused


def test_alignment_changes_confidence_and_not_uncertainty(monkeypatch):
    probs = [[0.98, 0.02, 0.0, 0.0], [0.98, 0.0, 0.02, 0.0], [0.98, 0.0, 0.0, 0.02]]  # class 0 dominates
    for alignment, labels in ((False, [0, 0, 0]), (True, [1, 2, 3])):
        a = algorithm(max_entropy=0.15, alignment=alignment)
        # Aligned, each is (¼, ¾) of two classes: 0.56 nats, which max_entropy would refuse; before, it is 0.10 nats.
        assert pseudo_label(a, probs, monkeypatch) == (labels, [True, True, True])


def test_banks_take_context_and_target_rows():
    for targets, latent_rows in (("all", 6 + 18), ("trusted", 6), ("split", 6)):
        a = algorithm(targets=targets, max_entropy=0.0)
        a.loss(make_batch(a), torch.tensor(0.0))
        assert int(a.head.latent_bank.filled) == 1 + latent_rows
        assert int(a.head.deterministic_bank.filled) == 1 + 6


def test_uncertainty_is_the_entropy_of_the_averaged_prediction(monkeypatch):
    """Samples that disagree: each is certain, their average is not. α is ½, as all points are equal."""
    a = algorithm(samples=2)
    certain = 50 * torch.eye(2, 4)[:, None]  # T 1 K
    monkeypatch.setattr(a.head, "decode", lambda features, z, r: certain.expand(2, len(features), 4))
    logs = a.loss(make_batch(a), torch.tensor(0.0)).logs
    assert float(logs["entropy_context"]) == pytest.approx(math.log(2))
    assert float(logs["entropy_target"]) == pytest.approx(math.log(2))
    assert float(logs["alpha"]) == pytest.approx(0.5)


def test_a_fixed_alpha_is_used():
    for alpha in (0.0, 0.25, 1.0):
        assert take_steps(algorithm(alpha=alpha), range(1))[0].logs["alpha"] == alpha


def test_split_without_trusted_images_has_no_divergence():
    step = take_steps(algorithm(targets="split", max_entropy=0.0), range(1))[0]
    assert step.logs["divergence"] == 0
    assert step.loss.isfinite()


def test_the_two_readings_differ_in_named_options_only():
    fields = {f"algorithm.{f.name}" for f in dataclasses.fields(NPMatch.Config)}
    for preset in NPMatch.presets.values():
        assert all(key in fields or key.startswith("training.") for key in preset)
    defaults = dataclasses.asdict(NPMatch.Config())
    assert all(defaults[key.partition(".")[2]] == value for key, value in NPMatch.presets["paper"].items())
