"""NP-Match: When Neural Processes meet Semi-Supervised Learning. Wang et al., ICML 2022.

Idea: a neural process on top of the network predicts from T latent samples, so one forward pass gives a prediction
and its uncertainty; pseudo-labels are trusted where the prediction is confident and certain.

    L = CE(labelled) + λ_u · CE(trusted strong views) + β · D(q(z | context), q(z | targets))      (Eq. 9)

Context points are the labelled batch; target points are the labelled batch and the strong views with their
pseudo-labels. D is JS^{G_α}, its dual, the ELBO's KL, or Rényi's.

Beside the paper's process there are two that predict from the context alone, `process=attentive` and `process=kernel`
(heads/). They have no latent and so no D; their T samples are resamplings of the context, to which the trusted
unlabelled images of the last batches may belong. Beside the paper's rule for what is trusted, FlexMatch's curriculum,
there are those of other methods, `gate=…` (objectives/gates.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.base import FAST, Algorithm
from npmatch.heads import (
    AttentiveProcessHead,
    ContextHead,
    KernelProcessHead,
    KnownImages,
    Model,
    NeuralProcessHead,
    TrustedPoints,
    WeakNorm,
    other_images,
)
from npmatch.objectives.divergences import DIVERGENCES, js_geometric, kl, skew_from_uncertainty
from npmatch.objectives.fairness import Fairness
from npmatch.objectives.gates import GATES, GateSettings
from npmatch.objectives.losses import cross_entropy_samples, entropy, masked_mean
from npmatch.objectives.selection import Alignment, make_alignment
from npmatch.types import (
    Adjustment,
    Batch,
    NonNegativeFloat,
    PositiveFloat,
    Samples,
    Share,
    ShareBelowOne,
    Size,
    Step,
    Task,
)


class NPMatch(Algorithm):
    """The paper's algorithm, with its open questions as options; see docs/method.md."""

    # Two readings of the method, and a third that learns in a short time. `paper` is the paper to the letter, and the
    # defaults below; `reference` is what the authors' released code does (its decoder, latents, alignment, averaging
    # and schedule).
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "algorithm.process": "paper",
            "algorithm.gate": "curriculum",
            "algorithm.targets": "all",
            "algorithm.alignment": False,
            "algorithm.weak_norm": "joint",
            "algorithm.decoder_width": "head",
            "algorithm.average": "probabilities",
        },
        "reference": {
            "algorithm.process": "paper",
            "algorithm.gate": "curriculum",
            "algorithm.targets": "split",
            "algorithm.alignment": True,
            "algorithm.weak_norm": "joint",
            "algorithm.decoder_width": "features",
            "algorithm.average": "logits",
            "training.schedule": "cosine-63-128",
            "training.clip": 3.0,
        },
        # Short training trusts early what is more likely right than not, in all classes alike.
        "fast": {
            **FAST,
            "algorithm.gate": "softmatch",
            "algorithm.alignment": "window",
            "algorithm.align_labels": True,
        },
    }

    @dataclass(frozen=True)
    class Config:
        """The paper's hyperparameters, and the options where it can be read in more than one way."""

        process: Literal["paper", "attentive", "kernel"] = "paper"  # which neural process predicts; see heads/
        context: Literal["labeled", "trusted"] = "trusted"  # images of a context without a latent; trusted: both kinds
        samples: Samples = 10  # T, number of latent samples of a prediction
        bank: Size = 2560  # Q, number of representations in a memory bank, or of images of each kind in a context
        width: Size | None = None  # M, width of the head; None: F/4, a quarter of the features; F without a latent
        gate: Literal["curriculum", "fixed", "freematch", "softmatch"] = "curriculum"  # which pseudo-labels are trusted
        confidence: Share = 0.95  # τ_c: threshold of the gate fixed, upper limit of the thresholds of curriculum
        max_entropy: NonNegativeFloat | None = None  # τ_u, nats: trusted if below; None: 0.4, or no limit, by the gate
        known_share: Share | None = None  # q, unknown images are not trusted: those farther than this share of labelled
        unlabeled_weight: NonNegativeFloat = 1.0  # λ_u, weight of the unlabelled loss
        unlabeled_mean: Literal["trusted", "all"] | None = None  # images that the loss is averaged over; None: by gate
        fairness_weight: NonNegativeFloat = 0.0  # w_f, weight of FreeMatch's fairness loss; 0: none
        decay: ShareBelowOne = 0.999  # of the moving averages of the gates freematch and softmatch and of fairness
        divergence_weight: NonNegativeFloat = 0.01  # β, weight of the divergence
        divergence: Literal["js", "js_dual", "kl", "renyi"] = "js"  # D, between q(z | context) and q(z | targets)
        alpha: Share | None = None  # None: α_u from uncertainty; a number: that skew throughout
        targets: Literal["all", "trusted", "split"] = "all"  # images whose representations make q(z | targets)
        alignment: Alignment = False  # p ← normalise(p / mean of the batch or of a window) before the confidence test
        window: Size = 128  # number of batches whose mean prediction is used for alignment=window
        align_labels: bool = False  # gate softmatch: whether labels are aligned too, as with the other gates
        weak_norm: WeakNorm = "joint"  # norm of weak views: with all views (shared: no gradient), by their own, running
        decoder_width: Literal["head", "features"] = "head"  # width of the decoder: M or F
        average: Literal["probabilities", "logits"] = "probabilities"  # what of the T samples is averaged in predict
        scale: PositiveFloat = 1e5  # s, kernel only: evidence of a labelled image for itself, against a prior of 1
        bandwidth: PositiveFloat = 0.1  # τ of kernel and attention, in units of the context's mean square
        adjustment: Adjustment = 0.0  # τ of the logit adjustment for uneven classes; 0: none, 1: by their shares

        def __post_init__(self) -> None:
            """Fills in what depends on the gate, so that the stored configuration says what was used."""
            begins_low = self.gate in ("freematch", "softmatch")  # on purpose, when all predictions are uncertain
            if self.max_entropy is None and not begins_low:
                object.__setattr__(self, "max_entropy", 0.4)
            if self.unlabeled_mean is None:
                object.__setattr__(self, "unlabeled_mean", "all" if self.gate == "softmatch" else "trusted")

    config: Config

    def __init__(self, backbone: nn.Module, task: Task, config: Config | None = None) -> None:
        """Adds the state of the gate (of the curriculum: an integer per unlabelled image) and the trusted points."""
        super().__init__(backbone, task, config)
        c, k = self.config, task.num_classes
        align = make_alignment(c.alignment, c.window, k)
        max_entropy = math.inf if c.max_entropy is None else c.max_entropy
        settings = GateSettings(task.num_unlabeled, k, c.confidence, c.decay, align, max_entropy, c.align_labels)
        # A gate has its own name in checkpoints; `curriculum` is the name it had before there were others.
        self.add_module(c.gate, GATES[c.gate](settings))
        features = int(backbone.num_features)  # type: ignore[arg-type]
        has_trusted = isinstance(self.model.head, ContextHead) and c.context == "trusted"
        self.trusted = TrustedPoints(c.bank, features) if has_trusted else None
        self.known = None if c.known_share is None else KnownImages(task.num_labeled, features, c.known_share)
        self.fairness = Fairness(k, c.decay) if c.fairness_weight else None

    @property
    def gate(self) -> nn.Module:
        """What decides which pseudo-labels are trusted."""
        return self.get_submodule(self.config.gate)

    @classmethod
    def make_model(cls, backbone: nn.Module, task: Task, config: Config) -> Model:
        """The backbone with a neural-process head."""
        features, k = int(backbone.num_features), task.num_classes  # type: ignore[arg-type]
        # A narrow embedding would lose what tells an image from the labelled ones.
        width = config.width or (max(features // 4, 1) if config.process == "paper" else features)
        head: nn.Module
        if config.process == "kernel":
            head = KernelProcessHead(features, k, width, config.samples, config.bank, config.scale, config.bandwidth)
        elif config.process == "attentive":
            head = AttentiveProcessHead(features, k, width, config.samples, config.bank, config.bandwidth)
        else:
            head = NeuralProcessHead(
                features,
                k,
                width=width,
                samples=config.samples,
                bank=config.bank,
                decoder_width=features if config.decoder_width == "features" else width,
                average=config.average,
            )
        return Model(backbone, head)

    def loss(self, batch: Batch, progress: Tensor) -> Step:
        """One training step of Section 3.2, in its order."""
        c = self.config
        (u_weak,), (u_strong,) = batch.weak, batch.strong
        f_x, f_weak, f_strong = self.model.features_of_views(batch.x, u_weak, u_strong, c.weak_norm)
        is_known = None if self.known is None else self.known(f_x, batch.labeled, f_weak)
        if isinstance(self.model.head, ContextHead):
            return self.loss_from_context(self.model.head, batch, f_x, f_weak, f_strong, is_known)

        head = self.head
        pseudo, keep = self.pseudo_label(f_weak.detach(), batch.index, is_known)

        # Training mode. Every labelled image is a context point; which images are target points is an option.
        labeled = torch.ones_like(batch.y, dtype=torch.bool)
        if c.targets == "all":
            in_x, in_u = labeled, torch.ones_like(keep)
        elif c.targets == "trusted":
            in_x, in_u = labeled, keep
        else:  # split: labelled points and trusted points each have their own latent
            in_x, in_u = ~labeled, keep
        is_target = torch.cat([in_x, in_u])

        # Latent path: representations, their mean over a set, the set's q(z).
        h_x, h_u = head.encode_latent(f_x, batch.y), head.encode_latent(f_strong, pseudo)
        q_zC = head.q_z(h_x.mean(0))  # q(z | context)
        q_zT = head.q_z(masked_mean(torch.cat([h_x, h_u]), is_target))  # q(z | targets)
        noise = torch.randn_like(head.noise)
        z_u = q_zT.sample(noise)
        z_x = q_zC.sample(noise) if c.targets == "split" else z_u

        # Deterministic path, then the decoder: T predictions for each target point.
        d_x = head.encode_deterministic(f_x, batch.y)
        r = d_x.mean(0)
        logits_x, logits_u = head.decode(f_x, z_x, r), head.decode(f_strong, z_u, r)

        loss_x = cross_entropy_samples(self.adjust.labeled(logits_x), batch.y).mean()  # Eq. 8
        loss_u = self.loss_unlabeled(logits_u, pseudo, keep)  # Eq. 8

        entropy_x, entropy_u = entropy(logits_x.softmax(-1).mean(0)), entropy(logits_u.softmax(-1).mean(0))
        u_context, u_target = entropy_x.mean(), masked_mean(torch.cat([entropy_x, entropy_u]), is_target)
        alpha = skew_from_uncertainty(u_context, u_target)
        if c.alpha is not None:
            alpha = torch.full_like(alpha, c.alpha)
        divergence = DIVERGENCES[c.divergence](q_zC, q_zT, alpha) * is_target.any()  # Eq. 4 or 7; 0 without targets

        loss = loss_x + c.unlabeled_weight * loss_u + c.divergence_weight * divergence  # Eq. 9

        head.latent_bank.push(torch.cat([h_x, h_u]), torch.cat([labeled, in_u > 0]))
        head.deterministic_bank.push(d_x, labeled)
        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "divergence": divergence,
            "alpha": alpha,
            "entropy_context": u_context,
            "entropy_target": u_target,
            # JS^{G_α} is O(α): these two tell a small divergence from a small α.
            "kl": kl(q_zT, q_zC),
            "js_half": js_geometric(q_zC, q_zT, 0.5),
            **head.contributions(f_strong, z_u, r),
        }
        return self.make_step(loss, logs, logits_u, pseudo, keep)

    def loss_from_context(
        self, head: ContextHead, batch: Batch, f_x: Tensor, f_weak: Tensor, f_strong: Tensor, is_known: Tensor | None
    ) -> Step:
        """The same step where the labelled batch is all that the T predictions are made from."""
        c = self.config
        with torch.no_grad():
            p = head.log_probs(f_weak, head.context_of(f_x, batch.y, self.trusted)).exp().mean(0)
        pseudo, keep = self.select(p, batch.index, is_known)
        if self.trusted is not None:
            self.trusted.push(f_weak, pseudo, batch.index, keep > 0.5)  # softmatch's gate gives weights

        context = head.context_of(f_x, batch.y, self.trusted)
        others = other_images(batch.labeled, batch.y)
        allowed = F.pad(others, (0, len(context.y) - len(f_x), 0, len(f_strong)), value=True)
        both = head.log_probs(torch.cat([f_x, f_strong]), context, allowed)  # together: the context is embedded once
        log_p_x, log_p_u = both[:, : len(f_x)], both[:, len(f_x) :]
        loss_x = cross_entropy_samples(self.adjust.labeled(log_p_x), batch.y).mean()  # Eq. 8
        loss_u = self.loss_unlabeled(log_p_u, pseudo, keep)  # Eq. 8
        loss = loss_x + c.unlabeled_weight * loss_u
        logs = {
            "loss_labeled": loss_x,
            "loss_unlabeled": loss_u,
            "entropy_context": entropy(log_p_x.exp().mean(0)).mean(),
            "entropy_target": entropy(log_p_u.exp().mean(0)).mean(),
        }
        return self.make_step(loss, logs, log_p_u, pseudo, keep)

    def loss_unlabeled(self, logits_u: Tensor, pseudo: Tensor, keep: Tensor) -> Tensor:
        """Cross-entropy of T predictions T U K for strong views; `keep` U says which count, or how much, 0-d."""
        adjusted_u = self.adjust.unlabeled(logits_u, pseudo)
        loss_u = masked_mean(cross_entropy_samples(adjusted_u, pseudo), keep)
        return loss_u * keep.to(loss_u.dtype).mean() if self.config.unlabeled_mean == "all" else loss_u

    def make_step(self, loss: Tensor, logs: dict[str, Tensor], logits_u: Tensor, pseudo: Tensor, keep: Tensor) -> Step:
        """The step of a loss, plus FreeMatch's fairness of the T predictions T U K for strong views, where wanted."""
        if self.fairness is not None:
            logs["loss_fairness"] = self.fairness(logits_u, keep)
            loss = loss + self.config.fairness_weight * logs["loss_fairness"]
        return Step(loss, {name: value.detach() for name, value in logs.items()}, pseudo, keep)

    @torch.no_grad()
    def pseudo_label(self, f_weak: Tensor, index: Tensor, is_known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inference mode on weak features U F: pseudo-labels U, and which are trusted U; updates the gate."""
        head = self.head
        p = head.infer(f_weak, torch.randn_like(head.noise)).softmax(-1).mean(0)
        return self.select(p, index, is_known)

    @torch.no_grad()
    def select(self, p: Tensor, index: Tensor, is_known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Pseudo-labels U of probabilities U K, and which are trusted U, or their weights; updates the gate."""
        if self.fairness is not None:
            self.fairness.update(p)
        u = entropy(p)
        if is_known is not None:
            u = u.masked_fill(~is_known, torch.inf)  # whatever p says, nothing is known about such an image
        pseudo, keep = self.gate(p, u, index)
        return pseudo, keep

    def trusted_images(self) -> tuple[Tensor, Tensor] | None:
        """Positions in the unlabelled set and pseudo-labels of the context's trusted images."""
        if self.trusted is None:
            return None
        held = self.trusted.in_use()
        return self.trusted.images[:-1][held], self.trusted.labels[:-1][held]

    @property
    def head(self) -> NeuralProcessHead:
        """The paper's neural-process head."""
        head = self.model.head
        assert isinstance(head, NeuralProcessHead)
        return head
