"""The model: batch-norm statistics of weak views, and features beside the prediction."""

import pytest
import torch

from npmatch.algorithms import find_algorithm
from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.heads import LinearHead, Model, synchronise_norms
from npmatch.types import Task


class Pool(torch.nn.Module):
    """Batch norm and pooling; its output shows which statistics were used."""

    num_features = 2

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).mean((2, 3))


@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
def test_weak_views_are_normalised_as_configured(weak_norm):
    x, weak, strong = torch.randn(4, 2, 3, 3), torch.randn(8, 2, 3, 3) + 5, torch.randn(8, 2, 3, 3) - 2
    model = Model(Pool(), LinearHead(2, 3)).train()
    _, f_weak, _ = model.features_of_views(x, weak, strong, weak_norm)
    fresh = Pool().train(weak_norm != "running")
    expected = fresh(torch.cat([x, weak, strong]))[4:12] if weak_norm == "joint" else fresh(weak)
    torch.testing.assert_close(f_weak, expected)
    assert f_weak.requires_grad == (weak_norm == "joint")
    assert model.backbone.training


@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
def test_further_views_are_in_the_pass_of_the_labelled_and_strong_ones(weak_norm):
    x, weak, strong, other = (torch.randn(n, 2, 3, 3) + shift for n, shift in ((4, 0), (8, 5), (8, -2), (4, 9)))
    found = Model(Pool(), LinearHead(2, 3)).train().features_of_views(x, weak, strong, weak_norm, other)
    together = [x, weak, strong, other] if weak_norm == "joint" else [x, strong, other]
    expected = list(Pool().train()(torch.cat(together)).split([len(view) for view in together]))
    if weak_norm != "joint":
        expected.insert(1, found[1])  # the test above has the weak views
    assert len(found) == 4
    for one, same in zip(found, expected, strict=True):
        torch.testing.assert_close(one, same)


def test_shared_views_are_normalised_as_joint_ones_and_weak_ones_get_no_gradient():
    views = [torch.randn(n, 2, 3, 3) + shift for n, shift in ((4, 0), (8, 5), (8, -2), (4, 9))]
    joint, shared = (Model(Pool(), LinearHead(2, 3)).train() for _ in range(2))
    synchronise_norms(shared.backbone)
    x, weak, strong, other = (view.requires_grad_() for view in views)
    found = shared.features_of_views(x, weak, strong, "shared", other)
    for one, same in zip(found, joint.features_of_views(x, weak, strong, "joint", other), strict=True):
        torch.testing.assert_close(one, same)
    torch.testing.assert_close(shared.backbone.state_dict(), joint.backbone.state_dict())
    assert [f.requires_grad for f in found] == [True, False, True, True]
    torch.cat(found).square().sum().backward()
    assert not weak.grad.any()
    assert all(view.grad.any() for view in (x, strong, other))
    assert shared.backbone.norm.learning is None


def test_describe_gives_the_prediction_and_the_features() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 1, 8, 8)
    for algorithm in ("ups", "npmatch", "fixmatch"):
        cls = find_algorithm(algorithm)
        model = cls.make_model(make_backbone(BackboneConfig(), 1), Task(("a", "b"), 2, 2), cls.Config()).eval()
        prediction, features = model.describe(x)
        assert torch.equal(prediction.probs, model(x).probs)
        assert torch.equal(features, model.features(x))
