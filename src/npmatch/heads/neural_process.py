"""The neural-process head: latent path, deterministic path, memory banks, decoder and classifier (paper, Fig. 1).

Points are (feature, label) pairs. Each path encodes points by an MLP and averages them, which makes the result
independent of their order. Training mode takes the averages from the batch, inference mode from the banks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.heads.bank import Bank
from npmatch.objectives.divergences import Gaussian
from npmatch.objectives.losses import mean_prediction, one_hot
from npmatch.types import Prediction

Average = Literal["probabilities", "logits"]


class NeuralProcessHead(nn.Module):
    """q(z | points), r(points) and p(y | feature, z, r), with T samples of z."""

    noise: Tensor  # T M: the stored draws that make predictions repeatable
    frozen_z: Tensor | None  # T D and D: contributions of z and r to the decoder's first layer, set by `freeze`
    frozen_r: Tensor | None

    def __init__(
        self,
        num_features: int,  # F
        num_classes: int,  # K
        width: int,  # M
        samples: int,  # T
        bank: int,  # Q
        decoder_width: int,
        average: Average = "probabilities",
    ) -> None:
        """All MLPs have two layers of width M (paper, appendix), but for the decoder's `decoder_width`."""
        super().__init__()
        self.num_classes, self.samples, self.width, self.average = num_classes, samples, width, average
        self.latent_encoder = encoder(num_features + num_classes, width)
        self.deterministic_encoder = encoder(num_features + num_classes, width)
        self.latent_mean = projector(width)
        self.latent_scale = projector(width)
        self.decoder_in = nn.Linear(num_features + 2 * width, decoder_width)
        self.decoder_out = nn.Linear(decoder_width, decoder_width)
        self.classifier = nn.Linear(decoder_width, num_classes)  # W of Eq. 3
        self.latent_bank = Bank(bank, width)
        self.deterministic_bank = Bank(bank, width)
        self.register_buffer("noise", torch.randn(samples, width))
        self.register_buffer("frozen_z", None, persistent=False)
        self.register_buffer("frozen_r", None, persistent=False)
        self.apply(_initialise)

    def encode_latent(self, features: Tensor, y: Tensor) -> Tensor:
        """Latent path's representation of each point: n F, n → n M."""
        return self._encode(self.latent_encoder, features, y)

    def encode_deterministic(self, features: Tensor, y: Tensor) -> Tensor:
        """Deterministic path's representation of each point: n F, n → n M."""
        return self._encode(self.deterministic_encoder, features, y)

    def _encode(self, path: nn.Module, features: Tensor, y: Tensor) -> Tensor:
        out: Tensor = path(torch.cat([features, one_hot(y, self.num_classes).to(features.dtype)], dim=-1))
        return out

    def q_z(self, h: Tensor) -> Gaussian:
        """The latent's distribution given the points' mean representation h, M."""
        # Paper: "the variance vector"; here: σ = 0.1 + 0.9·softplus(·), because a floor keeps every divergence finite.
        return Gaussian(self.latent_mean(h), 0.1 + 0.9 * F.softplus(self.latent_scale(h)))

    def decode(self, features: Tensor, z: Tensor, r: Tensor) -> Tensor:
        """Logits of every sample for every target point: n F, T M, M → T n K."""
        # The first layer acts on [feature, z_t, r]; its column blocks are applied separately: no copy for each t.
        _, on_z, on_r = self._first_layer()
        return self._decode(features, F.linear(z, on_z), F.linear(r, on_r))

    def _first_layer(self) -> tuple[Tensor, Tensor, Tensor]:
        """Column blocks of the decoder's first layer for features, z and r: D F, D M, D M."""
        weight = self.decoder_in.weight
        on_feature, on_z, on_r = torch.split(weight, [weight.shape[1] - 2 * self.width, self.width, self.width], 1)
        return on_feature, on_z, on_r

    def _decode(self, features: Tensor, from_z: Tensor, from_r: Tensor) -> Tensor:
        shared = F.linear(features, self._first_layer()[0], self.decoder_in.bias) + from_r
        hidden = F.leaky_relu(shared[None] + from_z[:, None], 0.1)
        logits: Tensor = self.classifier(F.leaky_relu(self.decoder_out(hidden), 0.1))  # Eq. 3
        return logits

    def infer(self, features: Tensor, noise: Tensor) -> Tensor:
        """Inference mode: logits T n K with both representations from the banks' means."""
        return self._decode(features, *self._from_banks(noise))

    def _from_banks(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions of z and r to the decoder's first layer in inference mode, T D and D, equal for all images."""
        _, on_z, on_r = self._first_layer()
        z = self.q_z(self.latent_bank.mean()).sample(noise)
        return F.linear(z, on_z), F.linear(self.deterministic_bank.mean(), on_r)

    @torch.no_grad()
    def freeze(self) -> None:
        """For prediction only: computes once what does not depend on the image; `train()` undoes it."""
        self.frozen_z, self.frozen_r = self._from_banks(self.noise)

    def train(self, mode: bool = True) -> NeuralProcessHead:
        """Drops the tensors that `freeze` has computed, as training changes them."""
        if mode:
            self.frozen_z = self.frozen_r = None
        super().train(mode)
        return self

    @torch.no_grad()
    def set_context(self, features: Tensor, y: Tensor) -> None:
        """For prediction only: replaces what the banks hold by these context points, n F and n."""
        self.latent_bank = Bank.of(self.encode_latent(features, y).mean(0))
        self.deterministic_bank = Bank.of(self.encode_deterministic(features, y).mean(0))

    @torch.no_grad()
    def contributions(self, features: Tensor, z: Tensor, r: Tensor) -> dict[str, Tensor]:
        """Mean norms of what features n F, z T M and r M add to the decoder's first layer, each 0-d."""
        names = ("feature", "z", "r")
        parts = (F.linear(x, w) for x, w in zip((features, z, r), self._first_layer(), strict=True))
        return {f"from_{name}": part.norm(dim=-1).mean() for name, part in zip(names, parts, strict=True)}

    def predict(self, features: Tensor) -> Prediction:
        """Average of the T predictions, its entropy, and the samples' disagreement about it."""
        if self.frozen_z is not None and self.frozen_r is not None:
            logits = self._decode(features, self.frozen_z, self.frozen_r)
        else:
            logits = self.infer(features, self.noise)
        prediction = mean_prediction(logits.softmax(-1))
        if self.average == "logits":  # the uncertainty stays that of the averaged probabilities
            return replace(prediction, probs=logits.mean(0).softmax(-1))
        return prediction


def encoder(inputs: int, width: int) -> nn.Sequential:
    """Two layers, each followed by an activation; the representations are averaged after it."""
    return nn.Sequential(nn.Linear(inputs, width), nn.LeakyReLU(0.1), nn.Linear(width, width), nn.LeakyReLU(0.1))


def projector(width: int) -> nn.Sequential:
    """Two layers without an activation at the end: a Gaussian's mean or scale before softplus."""
    return nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(0.1), nn.Linear(width, width))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)
        nn.init.zeros_(module.bias)
