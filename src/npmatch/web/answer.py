"""What the page says of one image beside its label: how sure, what is odd about it, and which images are like it."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from npmatch.data import Split, decode_image
from npmatch.data.images import SelectedImages, file_of
from npmatch.decide import Calibration, Decider, Decisions, Wishes
from npmatch.draws import mix
from npmatch.errors import NPMatchError
from npmatch.predict.batches import describe_store
from npmatch.predict.classifier import Classifier
from npmatch.report.gallery import LARGEST_SIDE, as_picture, is_crisp
from npmatch.types import ImageSet, ImageStore

# Up to this share of the largest uncertainty, log K → what a person would say.
WORDS = ((0.05, "very sure"), (0.25, "fairly sure"), (0.55, "unsure"), (math.inf, "at a loss"))


def uncertainty(entropy: float, num_classes: int) -> dict[str, Any]:
    """An entropy in nats, as a share of the largest there is, and in words."""
    share = min(1.0, max(0.0, entropy) / math.log(num_classes))
    return {"entropy": entropy, "share": share, "sureness": next(word for most, word in WORDS if share <= most)}


ABSTAIN = 0.05  # the error below which answers that are not withheld stay


def make_decider(calibration: Calibration | None) -> Decider:
    """Decides all that a run's held-out labels and training features allow, and nothing more."""
    wishes = Wishes(ood=calibration is not None and calibration.novelty is not None)
    try:
        return Decider(calibration, replace(wishes, abstain=ABSTAIN))
    except NPMatchError:  # too few labels were held out
        return Decider(calibration, wishes)


def remarks(decisions: Decisions, decider: Decider) -> list[dict[str, Any]]:
    """Sentences on one image, the serious ones first."""
    lines = []
    if decisions.ood is not None and decisions.ood_score is not None:
        is_new, score = bool(decisions.ood[0]), float(decisions.ood_score[0])
        text = "Unlike the images the model was trained on" if is_new else "It resembles the training images"
        end = ": do not rely on this answer." if is_new else "."
        lines.append({"text": f"{text} (novelty {score:.2f}, limit {decider.limit:.2f}){end}", "serious": is_new})
    if decisions.withheld is not None:
        kept = f"To keep the error below {ABSTAIN:.0%}, this answer would "
        withheld = bool(decisions.withheld[0])
        text = kept + ("be withheld: a person should decide." if withheld else "not be withheld.")
        lines.append({"text": text, "serious": withheld})
    if decisions.temperature is not None:
        text = f"Probabilities are calibrated on {decider.calibration.n} held-out labels."
        lines.append({"text": text, "serious": False})
    return sorted(lines, key=lambda line: not line["serious"])


def picture(store: ImageStore, position: int) -> tuple[bytes, str]:
    """One image, encoded, and its media type."""
    image = thumbnail(store, position)
    buffer = io.BytesIO()
    small = is_crisp(image)
    as_picture(image).save(buffer, "PNG" if small else "JPEG", quality=88)  # PNG has no quality and ignores it
    return buffer.getvalue(), "image/png" if small else "image/jpeg"


def thumbnail(store: ImageStore, position: int) -> Tensor:
    """An image large enough to be looked at: from its file where it has one, else as the model's data holds it."""
    channels, side, _ = store.shape
    file = file_of(store, position)
    if file is not None:
        return decode_image(file, max(LARGEST_SIDE, side), channels)
    return store.take(torch.tensor([position]))[0]


MOST = 20_000  # labelled images that are compared with; more are drawn from, so that memory stays bounded
BATCH = 64


@dataclass(frozen=True)
class Neighbours:
    """Labelled training images with their features."""

    positions: Tensor  # n, int64: in the training set
    labels: Tensor  # n, int64
    features: Tensor  # n F, of length 1

    def nearest(self, features: Tensor, count: int) -> list[tuple[int, int, float]]:
        """(position, label, cosine similarity) of the images nearest to one image's features F, nearest first."""
        likeness = self.features @ normalize(features, dim=0)
        found = likeness.topk(min(count, len(likeness)))
        index = found.indices
        columns = (self.positions[index].tolist(), self.labels[index].tolist(), found.values.tolist())
        return list(zip(*columns, strict=True))


def labeled_neighbours(classifier: Classifier, train: ImageSet, split: Split) -> Neighbours:
    """The images a run learned its labels from."""
    positions = split.labeled
    if len(positions) > MOST:
        chosen = torch.randperm(len(positions), generator=torch.Generator().manual_seed(mix(split.seed, "neighbours")))
        positions = positions[chosen[:MOST]].sort().values
    images = SelectedImages(train.images, positions)
    _, features = describe_store(classifier.model, images, classifier.spec, classifier.device, BATCH, workers=0)
    return Neighbours(positions, train.labels[positions], normalize(features, dim=1))
