"""How many more labels: the error expected at twice and four times as many, and the classes where they pay most.

No run is trained for it. Heads (logistic regression) on the features of a pretrained network are fitted to parts of the
labels, and scored on the others; a power law through their errors says by which share the error falls, and the run's
own error is lowered by that share. The network has not seen the labels, so it does not matter which of them are left
out: the features that a run has learnt would fit its own labels too well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from npmatch.backbones import BackboneConfig
from npmatch.backbones.weights import with_weights
from npmatch.baselines import BASELINES
from npmatch.data.images import SelectedImages
from npmatch.data.split import evaluation_set
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.files import write_atomically
from npmatch.labelling.first import SIDE, learnt_features
from npmatch.metrics.learning_curve import LearningCurve, fit_curve, prior_curve
from npmatch.runs.audit_result import results_of
from npmatch.runs.baseline import pretrained_features
from npmatch.runs.estimate import estimate_error
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import RunData, open_run_data
from npmatch.training.display import counting

SHARES = (0.25, 0.35, 0.5, 0.65, 0.8)  # of the labels that a head is fitted to
DRAWS = 20  # of every share
CLASS_DRAWS = 5
FARTHEST = 4  # times the labels: beyond, such curves are not to be trusted (Hoiem et al., 2021)
BAND = (0.1, 0.9)
WIDENED = 1.8  # the band, because the curve of heads is not that of whole training
NETWORK = "timm:tf_efficientnet_lite0.in1k"  # for runs from scratch; it is installed with npmatch
ESTIMATED = "estimated, not measured"
ESTIMATED_DEVIATION = 0.4  # of the logarithm of an error that nobody has measured

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Today:
    """The run's present error, as a share, and where it is from."""

    error: float
    n: int  # images on which it was measured; 0 if it was not
    source: str

    def samples(self, generator: np.random.Generator, count: int) -> Floats:
        """Error rates as probable as they are by what was measured."""
        if self.n:
            wrong = self.error * self.n
            return generator.beta(wrong + 0.5, self.n - wrong + 0.5, count)
        return self.error * np.exp(ESTIMATED_DEVIATION * generator.standard_normal(count))


@dataclass(frozen=True)
class Expected:
    """The error expected with a number of labels, as a share, and its 80 % band."""

    labels: int
    error: float
    low: float
    high: float


@dataclass(frozen=True)
class ClassGain:
    """What labels of one class are worth."""

    name: str
    labels: int  # it has now
    gain: float | None  # points by which the error of all classes rises without half of them; None if it has one


@dataclass(frozen=True)
class Forecast:
    """The forecast of a run."""

    labels: int
    error: float  # today's, as a share
    source: str
    expected: list[Expected]
    classes: list[ClassGain]  # those that pay most first
    is_general: bool  # whether the labels say hardly more than what is known of learning curves in general

    @property
    def remarks(self) -> list[str]:
        """What a reader must know to take the numbers rightly."""
        lines = ["Labels that npmatch suggest chooses bring more than random ones."]
        if self.is_general:
            lines.append(
                "The labels say hardly anything about the curve: the band is that of learning curves in general."
            )
        if self.source == ESTIMATED:
            lines.append("Nobody has measured today's error; npmatch audit does, and makes the band narrower.")
        return lines

    def asdict(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {**asdict(self), "remarks": self.remarks}


def forecast_run(
    run: str | Path,
    labels: int | None = None,
    data: str | Path | None = None,
    device: str | None = None,
    quiet: bool = True,
) -> Forecast:
    """The error of a finished run expected at 2 and 4 times its labels, or at `labels` of them; it is stored."""
    opened = open_run_data(run, data)
    y = opened.dataset.train.labels[opened.split.labeled]
    wanted = (2 * len(y), FARTHEST * len(y)) if labels is None else (labels,)
    check_labels(wanted, len(y))
    today = error_today(run, opened, data, device)
    f, scored = _features(opened, device, quiet)
    with counting("heads", _num_heads(y), quiet) as advance:
        curve = curve_of_heads(f, y, scored, advance=advance)
        gains = class_gains(f, y, opened.dataset.class_names, scored, advance=advance)
    found = forecast_from(curve, today, len(y), wanted, gains)
    if labels is None:
        store(found, RunFolder(run))
    return found


def _num_heads(y: Tensor) -> int:
    """How many heads a forecast from these labels fits."""
    return len(SHARES) * DRAWS + CLASS_DRAWS * (1 + int((y.bincount() > 1).sum()))


def store(found: Forecast, run: RunFolder) -> None:
    """Writes RUN/forecast.json, which the report shows."""
    try:
        write_atomically(run.forecast, (json.dumps(found.asdict(), indent=1) + "\n").encode())
    except OSError as error:
        raise NPMatchError(f"{run.forecast}: cannot be written ({error.strerror}); allow writing") from error


def check_labels(wanted: Sequence[int], now: int) -> None:
    """Refuses numbers of labels that nothing can be said about."""
    for labels in wanted:
        if labels <= now:
            raise NPMatchError(f"--labels {labels}: the run has {now} labels already; give a larger number")
        if labels > FARTHEST * now:
            raise NPMatchError(
                f"--labels {labels}: no forecast goes beyond {FARTHEST} times the labels, {FARTHEST * now}; label some "
                "and ask again"
            )


def forecast_from(
    curve: LearningCurve, today: Today, now: int, wanted: Sequence[int], gains: Sequence[ClassGain] = ()
) -> Forecast:
    """Lowers today's error as the curve falls; the band holds what is not known of either."""
    generator = np.random.default_rng(0)
    errors = today.samples(generator, 4000)
    drawn = generator.choice(len(curve.weight), 4000, p=curve.weight)
    expected = []
    for labels in wanted:
        low, middle, high = np.quantile(errors * curve.falls_to(now, labels)[drawn], (BAND[0], 0.5, BAND[1]))
        low, high = (float(middle * (limit / max(middle, 1e-9)) ** WIDENED) for limit in (low, high))
        expected.append(Expected(labels, float(middle), low, min(high, 1.0)))
    return Forecast(now, today.error, today.source, expected, list(gains), is_general(curve))


def is_general(curve: LearningCurve) -> bool:
    """Whether the exponent is hardly better known than without any label."""
    known, prior = (_deviation(one.b, one.weight) for one in (curve, prior_curve()))
    return known > 0.85 * prior


def _deviation(values: Floats, weight: Floats) -> float:
    mean = float((values * weight).sum())
    return float(np.sqrt((np.square(values - mean) * weight).sum()))


def error_today(run: str | Path, opened: RunData, data: str | Path | None, device: str | None) -> Today:
    """The run's error by its test images, else by an audit, else by its own confidence."""
    folder = RunFolder(run)
    scores = folder.final_scores()
    if "error" in scores and "n" in scores:
        return Today(scores["error"] / 100, int(scores["n"]), f"measured on {int(scores['n'])} held-out images")
    plain = [found for found in results_of(run) if not found.weighted and found.folder is None]
    if plain:
        rate = plain[-1].overall
        return Today(rate.error, rate.n, f"measured by an audit of {rate.n} labels")
    return Today(estimate_error(run, data, device).error / 100, 0, ESTIMATED)


def _features(run: RunData, device: str | None, quiet: bool) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Features of the labelled images, and features and labels of the held-out ones if there are any."""
    chosen, held_out = choose_device(device), evaluation_set(run.dataset, run.split)

    def features(images: Any) -> Tensor:
        if run.config.backbone.pretrained:
            return pretrained_features(run.config, run.dataset, run.split, images, chosen, quiet)
        network = with_weights(BackboneConfig(name=NETWORK, pretrained=True, input_size=SIDE))
        return learnt_features(network, images, chosen, quiet)

    f = features(SelectedImages(run.dataset.train.images, run.split.labeled))
    return f, None if held_out is None else (features(held_out.images), held_out.labels)


def curve_of_heads(
    f: Tensor,
    y: Tensor,
    scored: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda n: None,
) -> LearningCurve:
    """The posterior of the learning curve of heads on n labelled features, n F.

    Heads on a part of the labels are scored on `scored`, held-out features with their labels, or else on the rest of
    the labels. Parts of one set of labels overlap: a share p of it has as many independent parts as fit into it, 1/p.
    """
    if int(y.bincount().max()) < 2:
        return prior_curve()
    f, scored = compressed(f, scored)
    generator = np.random.default_rng(seed)
    points = []
    for share in SHARES:
        found = []
        for _ in range(DRAWS):
            found.append(_head_error(f, y, _part(y, share, generator), scored))
            advance(1)
        kept = np.array([one for one in found if one is not None])
        if len(kept) < 2:
            continue
        size, error = kept.mean(0)
        points.append((size, error, max(kept[:, 1].std(ddof=1) * np.sqrt(share), 0.005)))
    if len(points) < 2:
        return prior_curve()
    return fit_curve(*np.array(points).T)


def compressed(f: Tensor, scored: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """The same features, scaled to length 1, in as many dimensions as there are labels: heads on them are the same.

    The weights of a head lie in the span of the labelled features (the representer theorem). What a held-out feature
    has beyond that span is one coordinate more, which keeps its length and which no head uses.
    """
    f = normalize(f.double(), dim=-1)
    if len(f) >= f.shape[1]:
        return f.float(), scored
    basis = torch.linalg.qr(f.T).Q  # F n

    def coordinates(x: Tensor) -> Tensor:
        inside = normalize(x.double(), dim=-1) @ basis
        beyond = (1 - inside.square().sum(-1, keepdim=True)).clamp_min(0).sqrt()
        return torch.cat([inside, beyond], -1).float()

    return coordinates(f), None if scored is None else (coordinates(scored[0]), scored[1])


def _part(y: Tensor, share: float, generator: np.random.Generator) -> Tensor:
    """Positions of a share of each class's labels, one at least; what is left of a label is decided by chance."""
    parts = []
    for label in y.bincount().nonzero().flatten().tolist():
        of_class = generator.permutation((y == label).nonzero().flatten().numpy())
        wanted = share * len(of_class)
        count = int(wanted) + int(generator.random() < wanted - int(wanted))
        parts.append(of_class[: max(1, count)])
    return torch.from_numpy(np.concatenate(parts))


def _head_error(f: Tensor, y: Tensor, part: Tensor, scored: tuple[Tensor, Tensor] | None) -> tuple[float, float] | None:
    """Number of labels and error rate of a head on a part of them; None if there is nothing to score it on."""
    if scored is None:
        rest = torch.ones(len(y), dtype=torch.bool)
        rest[part] = False
        scored = f[rest], y[rest]
    if not len(scored[1]) or int((y[part].bincount() > 0).sum()) < 2:
        return None
    prediction = BASELINES["probe"].predict(f[part], y[part], scored[0], int(y.max()) + 1, f[:0])
    return float(len(part)), float((prediction.label != scored[1]).double().mean())


def class_gains(
    f: Tensor,
    y: Tensor,
    class_names: Sequence[str],
    scored: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda n: None,
) -> list[ClassGain]:
    """By how much the error of heads rises if half of a class's labels are taken away, class by class."""
    f, scored = compressed(f, scored)
    counts = y.bincount(minlength=len(class_names)).tolist()
    rises: dict[int, list[float]] = {label: [] for label, count in enumerate(counts) if count > 1}
    generator = np.random.default_rng(seed)
    for _ in range(CLASS_DRAWS):
        part = _part(y, 1.0 if scored is not None else SHARES[-1], generator)
        on = scored
        if on is None:
            rest = torch.ones(len(y), dtype=torch.bool)
            rest[part] = False
            on = f[rest], y[rest]
        whole = _head_error(f, y, part, on)
        advance(1)
        for label, found in rises.items():
            of_class = (y[part] == label).nonzero().flatten()
            keep = torch.ones(len(part), dtype=torch.bool)
            keep[of_class[torch.from_numpy(generator.permutation(len(of_class))[: len(of_class) // 2])]] = False
            fewer = _head_error(f, y, part[keep], on)
            advance(1)
            if whole is not None and fewer is not None and not keep.all():
                found.append(100 * (fewer[1] - whole[1]))
    means = {label: float(np.mean(found)) for label, found in rises.items() if found}
    gains = [ClassGain(name, counts[label], means.get(label)) for label, name in enumerate(class_names)]
    return sorted(gains, key=lambda one: (one.gain is None, -(one.gain or 0.0), one.labels))
