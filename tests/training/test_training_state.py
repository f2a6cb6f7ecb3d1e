"""Every piece of a checkpoint's state is needed: without it, a resumed run ends with other weights."""

import copy

import pytest
import torch

from npmatch.algorithms import ALGORITHMS, Algorithm, NPMatch
from npmatch.algorithms.check import make_algorithm, make_batch
from npmatch.training import TrainingConfig, Update

SAVED_AFTER, STEPS = 3, 6
# Options of NP-Match that bring state of their own.
GATED = {
    f"npmatch-{gate}": NPMatch.Config(gate=gate, fairness_weight=0.1, alignment="window", window=4, decay=0.9)
    for gate in ("freematch", "softmatch")
} | {"npmatch-known": NPMatch.Config(known_share=0.7, max_entropy=5.0, confidence=0.0)}


class Training:
    """Steps of an algorithm on a tiny task, and its state."""

    def __init__(self, name: str) -> None:
        self.algorithm = make(name)
        self.update = Update(self.algorithm, TrainingConfig(clip=3.0, ema=0.9))

    def take(self, steps: range) -> None:
        for k in steps:
            torch.manual_seed(k)
            batch = make_batch(self.algorithm, k)
            self.update.begin(batch.index)
            step = self.algorithm.train_step(batch, torch.tensor(0.5), self.update)
            self.update.ema.update(self.update.end(step))

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        parts = {"algorithm": self.algorithm, "ema": self.update.ema, "momentum": self.update}
        return copy.deepcopy({name: dict(part.state_dict()) for name, part in parts.items()})

    def load(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        self.algorithm.load_state_dict(state["algorithm"])
        self.update.ema.load_state_dict(state["ema"])
        self.update.load_state_dict(state["momentum"])


def make(name: str) -> Algorithm:
    return make_algorithm(NPMatch, GATED[name]) if name in GATED else make_algorithm(ALGORITHMS[name])


def is_same(first, second) -> bool:
    return all(torch.equal(first[part][key], second[part][key]) for part in first for key in first[part])


def is_close(first, second) -> bool:
    return torch.allclose(first, second, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [*sorted(ALGORITHMS), *GATED])
def test_dropping_any_piece_of_state_breaks_the_resume(name):
    straight = Training(name)
    fresh = straight.state()
    straight.take(range(SAVED_AFTER))
    saved = straight.state()
    straight.take(range(SAVED_AFTER, STEPS))

    def resume(state):
        resumed = Training(name)
        resumed.load(state)
        resumed.take(range(SAVED_AFTER, STEPS))
        return is_same(resumed.state(), straight.state())

    assert resume(saved), "with all of its state a resumed run must equal the uninterrupted one"
    buffers = {key for key, _ in make(name).named_buffers()}
    # A bias before a norm has no effect, and changes by rounding alone: whether it is noticed depends on the machine.
    changed = [key for key in buffers if not is_close(saved["algorithm"][key], fresh["algorithm"][key])]
    weights = [key for key in saved["algorithm"] if key not in buffers]
    pieces = {"averages": ("ema", list(saved["ema"])), "momentum": ("momentum", list(saved["momentum"]))}
    pieces |= {"weights": ("algorithm", weights), **{key: ("algorithm", [key]) for key in changed}}
    unnoticed = [
        piece
        for piece, (part, keys) in pieces.items()
        if resume({**saved, part: {**saved[part], **{key: fresh[part][key] for key in keys}}})
    ]
    assert unnoticed == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("npmatch", {"curriculum.counts", "curriculum.assigned", "model.head.latent_bank.rows",
                     "model.head.deterministic_bank.position", "model.backbone.norm.running_var"}),
        ("npmatch-freematch", {"freematch.confidence.value", "freematch.class_probs.value", "freematch.align.means",
                               "fairness.class_probs.value", "fairness.histogram.value"}),
        ("npmatch-softmatch", {"softmatch.mean.value", "softmatch.variance.value", "softmatch.align.batches"}),
        ("flexmatch", {"model.backbone.norm.running_mean"}),
        ("comatch", {"alignment.means", "alignment.batches", "memory.embeddings", "memory.probs", "memory.pushed"}),
        ("remixmatch", {"label_counts"}),
        ("simmatch", {"alignment.means", "memory.embeddings", "memory.labels"}),
        ("regmixmatch", {"adaptive.confidence.value", "adaptive.class_probs.value", "histogram.value"}),
        ("mpl", {"baseline", "teacher.backbone.norm.running_mean"}),
        ("meanteacher", {"teacher.updates", "teacher.backbone/conv/weight", "teacher.head/bias"}),
    ],
)  # fmt: skip
def test_the_known_state_of_an_algorithm_is_among_the_pieces_tried(name, expected):
    training = Training(name)
    if name == "npmatch":  # after so few steps no prediction would be confident enough
        training.algorithm = make_algorithm(NPMatch, NPMatch.Config(confidence=0.1, max_entropy=3.0))
        training.update = Update(training.algorithm, TrainingConfig())
    fresh = training.state()["algorithm"]
    training.take(range(SAVED_AFTER))
    changed = {key for key, value in training.state()["algorithm"].items() if not torch.equal(value, fresh[key])}
    assert expected <= changed
