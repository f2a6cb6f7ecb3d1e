"""The neural-process head: exchangeability, the decoder on concatenated inputs, averaged samples."""

import math

import pytest
import scipy.stats
import torch
import torch.nn.functional as F

from npmatch.heads import NeuralProcessHead


@pytest.fixture
def head() -> NeuralProcessHead:
    torch.manual_seed(0)
    head = NeuralProcessHead(12, 4, width=6, samples=5, bank=32, decoder_width=6)
    points = torch.randn(20, 12), torch.randint(4, (20,))
    for bank, encode in (
        (head.latent_bank, head.encode_latent),
        (head.deterministic_bank, head.encode_deterministic),
    ):
        bank.push(encode(*points), torch.ones(20, dtype=torch.bool))
    return head


def test_decoder_equals_the_concatenation_of_feature_latent_and_representation(head):
    features, z, r = torch.randn(7, 12), torch.randn(5, 6), torch.randn(6)
    for t in range(5):
        for i in range(7):
            joined = torch.cat([features[i], z[t], r])
            hidden = F.leaky_relu(head.decoder_in(joined), 0.1)
            expected = head.classifier(F.leaky_relu(head.decoder_out(hidden), 0.1))
            torch.testing.assert_close(head.decode(features, z, r)[t, i], expected, rtol=1e-4, atol=1e-5)


def test_the_order_of_points_does_not_change_q(head):
    features, y = torch.randn(10, 12), torch.randint(4, (10,))
    order = torch.randperm(10)
    one = head.q_z(head.encode_latent(features, y).mean(0))
    other = head.q_z(head.encode_latent(features[order], y[order]).mean(0))
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.std, other.std)


def test_permuting_a_batch_permutes_its_predictions(head):
    features, order = torch.randn(10, 12), torch.randperm(10)
    torch.testing.assert_close(head.predict(features).probs[order], head.predict(features[order]).probs)


def test_samples_differ_and_the_standard_deviation_has_a_floor(head):
    q = head.q_z(torch.randn(6) * 100)
    assert (q.std >= 0.1).all()
    logits = head.infer(torch.randn(3, 12), head.noise)
    assert logits.shape == (5, 3, 4)
    assert not torch.equal(logits[0], logits[1])


def test_the_standard_deviation_is_a_tenth_and_nine_tenths_of_softplus(head):
    h = torch.randn(6)
    first, _, last = head.latent_scale
    hidden = [max(x, 0.1 * x) for x in (first.weight @ h + first.bias).tolist()]
    by_hand = [0.1 + 0.9 * math.log1p(math.exp(x)) for x in (last.weight @ torch.tensor(hidden) + last.bias).tolist()]
    torch.testing.assert_close(head.q_z(h).std, torch.tensor(by_hand))


def test_weights_start_xavier_normal_and_biases_at_zero():
    torch.manual_seed(0)
    head = NeuralProcessHead(512, 10, width=128, samples=2, bank=4, decoder_width=128)
    for layer in (layer for layer in head.modules() if isinstance(layer, torch.nn.Linear)):
        wanted = math.sqrt(2 / (layer.in_features + layer.out_features))
        assert float(layer.weight.detach().std()) == pytest.approx(wanted, rel=0.1)
        assert not layer.bias.any()


def test_prediction_is_the_average_with_its_entropy_and_mutual_information(head):
    features = torch.randn(8, 12)
    samples = head.infer(features, head.noise).softmax(-1)
    prediction = head.predict(features)
    torch.testing.assert_close(prediction.probs, samples.mean(0))
    expected = torch.distributions.Categorical(probs=samples.mean(0)).entropy()
    within = torch.distributions.Categorical(probs=samples).entropy().mean(0)
    torch.testing.assert_close(prediction.entropy, expected)
    torch.testing.assert_close(prediction.disagreement, (expected - within).clamp(min=0), rtol=1e-3, atol=1e-6)


def test_averaging_logits_is_the_geometric_mean_of_the_probabilities(head):
    features = torch.randn(8, 12)
    samples = head.infer(features, head.noise).softmax(-1)
    head.average = "logits"
    expected = torch.from_numpy(scipy.stats.gmean(samples.detach().numpy(), axis=0))
    torch.testing.assert_close(head.predict(features).probs, expected / expected.sum(-1, keepdim=True))


def test_a_frozen_head_predicts_the_same_to_the_bit_until_it_is_trained():
    torch.manual_seed(0)
    head = NeuralProcessHead(12, 4, width=3, samples=5, bank=8, decoder_width=3).eval()
    head.latent_bank.push(torch.randn(6, 3), torch.ones(6, dtype=torch.bool))
    features = torch.randn(7, 12)
    with torch.no_grad():
        before = head.predict(features)
        head.freeze()
        frozen = head.predict(features)
        assert torch.equal(before.probs, frozen.probs)
        assert torch.equal(before.entropy, frozen.entropy)
        head.latent_bank.push(10 * torch.randn(6, 3), torch.ones(6, dtype=torch.bool))
        assert torch.equal(head.predict(features).probs, before.probs)
        assert not torch.equal(head.train().eval().predict(features).probs, before.probs)
    assert not any("frozen" in name for name in head.state_dict())
