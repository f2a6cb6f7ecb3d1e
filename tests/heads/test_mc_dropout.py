"""MC dropout: ordinary dropout in training; in prediction T sub-networks, each determined by its number."""

import copy
import threading

import pytest
import torch
from torch import nn

from npmatch.backbones import BackboneConfig, make_backbone
from npmatch.heads.mc_dropout import DropoutHead, MCDropout, MCDropoutModel, _in_pass


def model(dropout: float = 0.3, samples: int = 6, name: str = "cnn", channels: int = 1) -> MCDropoutModel:
    torch.manual_seed(0)
    backbone = make_backbone(BackboneConfig(name=name, width=8 if name == "cnn" else None), channels)
    return MCDropoutModel(backbone, num_classes=4, dropout=dropout, samples=samples).eval()


def images(n: int, side: int = 8) -> torch.Tensor:
    return torch.randn(n, 1, side, side, generator=torch.Generator().manual_seed(1))


def test_in_training_every_image_has_its_own_mask():
    out = MCDropout(0.3).train()(torch.ones(50, 400))
    assert sorted(set(out.unique().tolist())) == pytest.approx([0, 1 / 0.7])
    assert (out[0] != out[1]).any()
    assert (out == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)


def test_in_a_pass_all_images_have_the_same_mask():
    layer = MCDropout(0.3).eval()
    with _in_pass(2):
        mask = layer(torch.ones(1, 8, 20, 20))
    x = torch.randn(5, 8, 20, 20)
    with _in_pass(2):
        torch.testing.assert_close(layer(x), x * mask)
    assert sorted(set(mask.unique().tolist())) == pytest.approx([0, 1 / 0.7])
    assert (mask == 0).float().mean().item() == pytest.approx(0.3, abs=0.03)


def test_every_pass_and_every_layer_has_its_own_mask():
    layers, x, masks = [MCDropout(0.5).eval() for _ in range(3)], torch.ones(1, 100), set()
    for number in range(4):
        with _in_pass(number):
            masks |= {tuple(layer(x)[0].tolist()) for layer in (*layers, layers[0])}  # the first is called twice
    assert len(masks) == 4 * 4


def test_outside_a_pass_evaluation_drops_nothing():
    x = torch.randn(3, 10)
    assert torch.equal(MCDropout(0.9).eval()(x), x)


def test_predictions_do_not_depend_on_batch_order_or_repetition():
    m, x = model(), images(12)
    whole = m(x)
    assert torch.equal(m(x).probs, whole.probs)
    assert torch.equal(copy.deepcopy(m)(x).probs, whole.probs)
    order = torch.randperm(12)
    parts = [m(x[order[i : i + 5]]) for i in range(0, 12, 5)]
    torch.testing.assert_close(torch.cat([p.probs for p in parts]), whole.probs[order])
    torch.testing.assert_close(torch.cat([p.disagreement for p in parts]), whole.disagreement[order])


def test_other_image_sizes_between_calls_change_nothing():
    m, x = model(), images(3)
    before = m(x).probs
    m(images(2, side=12))
    assert torch.equal(m(x).probs, before)


def test_prediction_is_the_average_of_the_passes_with_its_entropy_and_mutual_information():
    m, x = model(), images(5)
    samples = []
    for number in range(6):
        with _in_pass(number):
            samples.append(m.logits(x).softmax(-1))
    stacked = torch.stack(samples)
    assert stacked.std(0).max() > 0.01, "the passes must differ"
    prediction = m(x)
    total = torch.distributions.Categorical(probs=stacked.mean(0)).entropy()
    within = torch.distributions.Categorical(probs=stacked).entropy().mean(0)
    torch.testing.assert_close(prediction.probs, stacked.mean(0))
    torch.testing.assert_close(prediction.entropy, total)
    torch.testing.assert_close(prediction.disagreement, total - within, rtol=1e-3, atol=1e-6)
    assert (prediction.disagreement > 0).all()


def test_prediction_does_not_use_the_default_generator():
    m = model()
    before = torch.get_rng_state()
    m(images(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_dropout_it_is_the_plain_network():
    m, x = model(dropout=0.0), images(4)
    torch.testing.assert_close(m(x).probs, m.logits(x).softmax(-1))
    assert m(x).disagreement.max() < 1e-6


def test_threads_that_share_a_model_do_not_share_a_pass():
    m, x, results = model(samples=20), images(4), []
    expected = m(x).probs
    threads = [threading.Thread(target=lambda: results.append(m(x).probs)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(probs, expected) for probs in results)


@pytest.mark.parametrize(
    ("name", "slots"),
    [("cnn", 1), ("wrn-28-2", 12), ("timm:resnet18", 0), ("timm:test_vit", None)],
)
def test_every_dropout_of_a_backbone_is_replaced(name, slots):
    backbone = make_backbone(BackboneConfig(name=name), 1)
    before = sum(isinstance(module, nn.Dropout) for module in backbone.modules())
    assert before > 0 if slots is None else before == slots
    keys = list(backbone.state_dict())
    m = MCDropoutModel(backbone, num_classes=4, dropout=0.3, samples=2).eval()
    layers = [module for module in m.modules() if isinstance(module, nn.Dropout)]
    assert all(isinstance(layer, MCDropout) and layer.p == 0.3 for layer in layers)
    assert len(layers) == before + 1, "and one before the classifier"
    assert isinstance(m.head, DropoutHead)
    assert list(m.backbone.state_dict()) == keys, "dropout has no state"


@pytest.mark.parametrize(("name", "side"), [("timm:resnet18", 32), ("timm:test_vit", 160)])
def test_timm_networks_predict_by_samples(name, side):
    m, x = model(name=name, samples=3), images(3, side)
    prediction = m(x)
    assert prediction.probs.shape == (3, 4)
    assert (prediction.disagreement > 0).all()
    torch.testing.assert_close(m(x[1:2]).probs, prediction.probs[1:2], rtol=1e-4, atol=1e-5)


def test_a_rebuilt_model_takes_the_saved_weights():
    m, x = model(), images(4)
    torch.manual_seed(9)
    other = MCDropoutModel(make_backbone(BackboneConfig("cnn", width=8), 1), 4, dropout=0.3, samples=6).eval()
    assert not torch.equal(other(x).probs, m(x).probs)
    other.load_state_dict(m.state_dict())
    assert torch.equal(other(x).probs, m(x).probs)
