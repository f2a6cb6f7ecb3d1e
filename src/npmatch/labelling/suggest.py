"""What to label next: the images a model is unsure of, and of those no two alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from npmatch.data import ImageStore
from npmatch.data.images import SelectedImages
from npmatch.draws import mix
from npmatch.errors import NoSuchChoiceError, NPMatchError
from npmatch.predict.batches import describe_store, predict_store
from npmatch.predict.classifier import Classifier
from npmatch.types import Prediction

Strategy = Literal["diverse", "uncertainty", "random"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

POOL_PER_SUGGESTION = 10  # how many of the most uncertain images compete for a place
NEAR_DUPLICATE = 0.1  # images nearer than this share of the usual distance show the same thing

Describe = Callable[[Tensor], Tensor]  # positions n → features n F


class Pick(NamedTuple):
    """A chosen image, and the one before it that it resembles most."""

    position: int
    nearest: int | None = None  # position of that one; None: there is none, or it is among the known ones
    distance: float | None = None  # to it, where 1 is the usual distance between two images as uncertain


@dataclass(frozen=True)
class Suggestion:
    """An image worth a label, and why."""

    name: str
    position: int  # among the candidates
    predicted: str
    confidence: float
    runner_up: str
    runner_up_confidence: float
    uncertainty: float  # nats
    nearest: str | None  # the suggestion before this one that it resembles most
    distance: float | None
    reason: str


def suggest(
    classifier: Classifier,
    names: list[str],
    images: ImageStore,
    count: int,
    strategy: str = "diverse",
    *,
    known: ImageStore | None = None,
    prediction: Prediction | None = None,
    seed: int = 0,
    batch_size: int = 256,
) -> list[Suggestion]:
    """The `count` images to label next, best first; a beginning of the list is as good a choice as the whole.

    `known` are images labelled since the model was trained, which nothing suggested should resemble; `prediction` is
    what the model says of `images`, where that was asked before.
    """
    if strategy not in STRATEGIES:
        raise NoSuchChoiceError("strategy", strategy, list(STRATEGIES))
    if count < 1:
        raise NPMatchError(f"{count} suggestions: ask for 1 or more")
    if not names:
        return []
    model, spec, device = classifier.model, classifier.spec, classifier.device
    if prediction is None:
        prediction = predict_store(model, images, spec, device, batch_size)

    def describe(positions: Tensor) -> Tensor:
        return describe_store(model, SelectedImages(images, positions), spec, device, batch_size)[1]

    if strategy == "random":
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(mix(seed, "suggest")))
        picks = [Pick(position) for position in order[:count].tolist()]
    elif strategy == "uncertainty":
        picks = [Pick(position) for position in most_uncertain(prediction.entropy)[:count].tolist()]
    else:
        taken = None if known is None or not len(known) else describe_store(model, known, spec, device, batch_size)[1]
        picks = choose_diverse(prediction.entropy, describe, count, taken)
    return [_explain(pick, names, prediction, classifier.class_names) for pick in picks]


def most_uncertain(entropy: Tensor) -> Tensor:
    """Positions by falling uncertainty; of equal ones the first comes first."""
    return entropy.argsort(descending=True, stable=True)


def choose_diverse(entropy: Tensor, describe: Describe, count: int, taken: Tensor | None = None) -> list[Pick]:
    """Greedily, from a pool of the most uncertain: the next is the one with the largest uncertainty × distance².

    The distance is that to the nearest image chosen before (or among the features `taken`, n F). Where a pool holds
    nothing but near-duplicates of those, the next most uncertain images follow; memory is that of one pool.
    """
    order, size = most_uncertain(entropy), POOL_PER_SUGGESTION * count
    picks: list[Pick] = []
    centres, usual = taken, 0.0
    for start in range(0, len(order), size):
        pool = order[start : start + size]
        features = describe(pool).float()
        usual = usual or usual_distance(features)
        chosen = _greedy(entropy[pool], features, count - len(picks), centres, usual)
        known = 0 if taken is None else len(taken)
        for row, nearest, distance in chosen:
            before = None if nearest is None or nearest < known else picks[nearest - known].position
            picks.append(Pick(int(pool[row]), before, distance))
        if len(picks) == count:
            break
        new = features[[row for row, _, _ in chosen]]
        centres = new if centres is None else torch.cat([centres, new])
    return picks


def _greedy(
    weights: Tensor, features: Tensor, count: int, centres: Tensor | None, usual: float
) -> list[tuple[int, int | None, float | None]]:
    """Rows of `features`, each with its nearest centre (those given, then those chosen) and the distance to it."""
    held = 0 if centres is None else len(centres)
    distance = torch.full((len(features),), torch.inf)
    nearest = torch.full((len(features),), -1)
    for number in range(held):
        _come_nearer(distance, nearest, features, centres[number], number)  # type: ignore[index]
    chosen: list[tuple[int, int | None, float | None]] = []
    while len(chosen) < min(count, len(features)):
        first = held + len(chosen) == 0
        row = 0 if first else int((weights * distance.square()).argmax())
        if not first and float(distance[row]) <= NEAR_DUPLICATE * usual:
            break
        chosen.append((row, None, None) if first else (row, int(nearest[row]), float(distance[row]) / (usual or 1.0)))
        _come_nearer(distance, nearest, features, features[row], held + len(chosen) - 1)
    return chosen


def _come_nearer(distance: Tensor, nearest: Tensor, features: Tensor, centre: Tensor, number: int) -> None:
    """Takes one more centre into account, in place."""
    to_centre = (features - centre).norm(dim=1)
    nearest[to_centre < distance] = number
    torch.minimum(distance, to_centre, out=distance)


def usual_distance(features: Tensor) -> float:
    """The median distance between two images, from a fixed thousand pairs; 0 where they are alike."""
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randint(len(features), (1000,), generator=generator) for _ in range(2))
    distances = (features[one] - features[other]).norm(dim=1)[one != other]
    return float(distances.median()) if len(distances) else 0.0


def _explain(pick: Pick, names: list[str], prediction: Prediction, class_names: tuple[str, ...]) -> Suggestion:
    """A choice in words."""
    (p_first, p_second), (first, second) = (part.tolist() for part in prediction.probs[pick.position].topk(2))
    reason = f"either {class_names[first]} ({p_first:.0%}) or {class_names[second]} ({p_second:.0%})"
    if pick.distance is not None:
        from_what = "an image labelled since" if pick.nearest is None else "the nearest one above"
        reason += f"; {pick.distance:.2f} of the usual distance from {from_what}"
    return Suggestion(
        name=names[pick.position],
        position=pick.position,
        predicted=class_names[first],
        confidence=p_first,
        runner_up=class_names[second],
        runner_up_confidence=p_second,
        uncertainty=float(prediction.entropy[pick.position]),
        nearest=None if pick.nearest is None else names[pick.nearest],
        distance=pick.distance,
        reason=reason,
    )
