"""check_algorithm: it passes for every algorithm here, and for each promise it catches an algorithm that breaks it."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from npmatch.algorithms import ALGORITHMS, Algorithm, CRMatch, check_algorithm
from npmatch.types import Prediction, Step, Views

# Parameters that learn from trusted images only are not reached by default, as no prediction is confident.
TRUSTING = {"crmatch": CRMatch.Config(confidence=0.3)}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_passes(name):
    assert check_algorithm(ALGORITHMS[name], TRUSTING.get(name)) is None


class Honest(Algorithm):
    """FixMatch in a few lines."""

    views = Views(weak=1, strong=1)

    @dataclass(frozen=True)
    class Config:
        confidence: float = 0.3

    def loss(self, batch, progress):
        logits_x = self.logits(batch.x)
        with torch.no_grad():
            confidence, pseudo = self.logits(batch.weak[0]).softmax(-1).max(-1)
        keep = confidence > self.config.confidence
        loss_u = (F.cross_entropy(self.logits(batch.strong[0]), pseudo, reduction="none") * keep).mean()
        loss = F.cross_entropy(logits_x, batch.y) + loss_u
        return Step(loss, {"loss_unlabeled": loss_u.detach()}, pseudo, keep)

    def logits(self, x):
        return self.model.head(self.model.features(x))


def test_a_users_algorithm_passes():
    assert check_algorithm(Honest) is None


class HostReader(Honest):
    def loss(self, batch, progress):
        step = super().loss(batch, progress)
        return step if step.loss.item() > -1 else step._replace(loss=step.loss * 2)


class RowSelector(Honest):
    def loss(self, batch, progress):
        step = super().loss(batch, progress)
        return step._replace(loss=step.loss + batch.weak[0][step.keep].sum() * 0)


class Forgetful(Honest):
    """Keeps a counter where state_dict does not see it."""

    count = 0

    def loss(self, batch, progress):
        self.count += 1
        step = super().loss(batch, progress)
        return step._replace(loss=step.loss * self.count)


class Unreached(Honest):
    def __init__(self, backbone, task, config=None):
        super().__init__(backbone, task, config)
        self.idle = torch.nn.Linear(2, 2)


class Attached(Honest):
    def loss(self, batch, progress):
        step = super().loss(batch, progress)
        return step._replace(logs={"loss_x": step.loss})


class Unnormalised(Honest):
    def predict(self, x):
        return Prediction(2 * self.logits(x).softmax(-1), torch.zeros(len(x)))


class BatchDependent(Honest):
    def predict(self, x):
        probs = (self.logits(x) - self.logits(x).mean(0)).softmax(-1)
        return Prediction(probs, torch.zeros(len(x)))


class Restless(Honest):
    def predict(self, x):
        probs = (self.logits(x) + torch.randn(len(x), 1) * torch.arange(4)).softmax(-1)
        return Prediction(probs, torch.zeros(len(x)))


class Unseeded(Honest):
    calls = 0

    def loss(self, batch, progress):
        Unseeded.calls += 1
        step = super().loss(batch, progress)
        return step._replace(loss=step.loss * (1 + 0.1 * (Unseeded.calls % 7)))


class Replacing(Honest):
    def __init__(self, backbone, task, config=None):
        super().__init__(backbone, task, config)
        self.register_buffer("seen", torch.zeros(()))

    def loss(self, batch, progress):
        self.seen = self.seen + 1
        return super().loss(batch, progress)


class NaNWithoutTrust(Honest):
    def loss(self, batch, progress):
        step = super().loss(batch, progress)
        return step._replace(loss=step.loss + 0 * (step.keep.float().sum() / step.keep.float().sum()))


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (HostReader, "waits for the device"),
        (RowSelector, "nonzero|mask"),
        (Forgetful, "after a save and a load"),
        (Unreached, r"no gradient reaches .*idle"),
        (Attached, "loss_x must be detached"),
        (Unnormalised, "sum to one"),
        (BatchDependent, "depends on the other images"),
        (Restless, "another answer"),
        (Unseeded, "after a save and a load|one seed differ"),
        (Replacing, "changed in place"),
        (NaNWithoutTrust, "not finite|finite 0-d"),
    ],
)
def test_a_broken_algorithm_is_caught(broken, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_algorithm(broken)
