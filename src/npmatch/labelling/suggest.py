"""Active learning: which images to label next. They should be uncertain, and not similar to one another."""

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

POOL_PER_SUGGESTION = 10  # number of uncertain images to choose each suggestion from
NEAR_DUPLICATE = 0.1  # share of the usual distance between two images, below which they count as duplicates

Describe = Callable[[Tensor], Tensor]  # positions n → features n F


class Pick(NamedTuple):
    """A chosen image, and the most similar one that was chosen before it."""

    position: int
    nearest: int | None = None  # position of the similar one; None if there is none, or if it is labelled already
    distance: float | None = None  # to it, in units of the usual distance between two uncertain images


@dataclass(frozen=True)
class Suggestion:
    """An image to label, and the reason."""

    name: str
    position: int  # among the candidates
    predicted: str
    confidence: float
    runner_up: str
    runner_up_confidence: float
    uncertainty: float  # nats
    nearest: str | None  # name of the most similar suggestion before this one
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
    """The `count` images to label next, best first, so that a shorter part from the beginning is a good choice too.

    `known` are images that have been labelled since the model was trained; suggestions should not resemble them.
    `prediction` is the prediction of `images`, if it has been computed already.
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
    """Positions in order of decreasing uncertainty; ties keep their order."""
    return entropy.argsort(descending=True, stable=True)


def choose_diverse(entropy: Tensor, describe: Describe, count: int, taken: Tensor | None = None) -> list[Pick]:
    """Chooses greedily from a pool of the most uncertain images: next is the largest uncertainty × distance².

    The distance is that to the nearest image chosen before, or to the features `taken`, n F. If only near-duplicates
    are left in a pool, the next most uncertain images form another pool; one pool is in memory at a time.
    """
    order, size = most_uncertain(entropy), POOL_PER_SUGGESTION * count
    picks: list[Pick] = []
    centres, usual = taken, 0.0
    for start in range(0, len(order), size):
        pool = order[start : start + size]
        features = describe(pool).float()
        usual = usual or usual_distance(features)
        chosen = _greedy(entropy[pool], features, count - len(picks), centres, usual)
        num_taken = 0 if taken is None else len(taken)
        for row, nearest, distance in chosen:
            similar = None if nearest is None or nearest < num_taken else picks[nearest - num_taken].position
            picks.append(Pick(int(pool[row]), similar, distance))
        if len(picks) == count:
            break
        new = features[[row for row, _, _ in chosen]]
        centres = new if centres is None else torch.cat([centres, new])
    return picks


def _greedy(
    weights: Tensor, features: Tensor, count: int, centres: Tensor | None, usual: float
) -> list[tuple[int, int | None, float | None]]:
    """Chosen rows of `features`, each with the number of its nearest centre and the distance to that.

    Centres are numbered from 0: those given, then the rows chosen here.
    """
    num_centres = 0 if centres is None else len(centres)
    distance = torch.full((len(features),), torch.inf)
    nearest = torch.full((len(features),), -1)
    for number in range(num_centres):
        _add_centre(distance, nearest, features, centres[number], number)  # type: ignore[index]
    chosen: list[tuple[int, int | None, float | None]] = []
    while len(chosen) < min(count, len(features)):
        first = num_centres + len(chosen) == 0
        row = 0 if first else int((weights * distance.square()).argmax())
        if not first and float(distance[row]) <= NEAR_DUPLICATE * usual:
            break
        chosen.append((row, None, None) if first else (row, int(nearest[row]), float(distance[row]) / (usual or 1.0)))
        _add_centre(distance, nearest, features, features[row], num_centres + len(chosen) - 1)
    return chosen


def _add_centre(distance: Tensor, nearest: Tensor, features: Tensor, centre: Tensor, number: int) -> None:
    """Updates, in place, the distance of each row to its nearest centre, and the number of that centre."""
    to_centre = (features - centre).norm(dim=1)
    nearest[to_centre < distance] = number
    torch.minimum(distance, to_centre, out=distance)


def usual_distance(features: Tensor) -> float:
    """The median distance between two images, over a thousand random pairs with a fixed seed; 0 if all are equal."""
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randint(len(features), (1000,), generator=generator) for _ in range(2))
    distances = (features[one] - features[other]).norm(dim=1)[one != other]
    return float(distances.median()) if len(distances) else 0.0


def _explain(pick: Pick, names: list[str], prediction: Prediction, class_names: tuple[str, ...]) -> Suggestion:
    """The suggestion for a pick, with its reason in words."""
    (p_first, p_second), (first, second) = (part.tolist() for part in prediction.probs[pick.position].topk(2))
    reason = f"either {class_names[first]} ({p_first:.0%}) or {class_names[second]} ({p_second:.0%})"
    if pick.distance is not None:
        other = "an image labelled since" if pick.nearest is None else "the nearest one above"
        reason += f"; {pick.distance:.2f} of the usual distance from {other}"
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
