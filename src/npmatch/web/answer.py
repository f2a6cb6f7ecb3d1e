"""The parts of the page's answer about one image.

How uncertain the prediction is, in nats and in words; what calibration says about it (novelty, abstention); the image
itself, encoded for the browser; and the labelled training images nearest to it in feature space.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
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

# Upper bound on the entropy as a share of log K → the word for it. try.js has the same bounds, for its colours.
UNCERTAINTY_WORDS = ((0.05, "very sure"), (0.25, "fairly sure"), (0.55, "unsure"), (math.inf, "very unsure"))
ABSTAIN = 0.05  # target error rate among predictions that are not withheld
MAX_NEIGHBOURS = 20_000  # labelled images to compare with; of more, a random sample is used, which bounds memory
BATCH = 64
CLASSES_SHOWN = 10


def describe_uncertainty(entropy: float, num_classes: int) -> dict[str, Any]:
    """An entropy in nats, also as a share of its maximum log K and in words."""
    share = min(1.0, max(0.0, entropy) / math.log(num_classes))
    word = next(word for bound, word in UNCERTAINTY_WORDS if share <= bound)
    return {"entropy": entropy, "share": share, "sureness": word}


def make_decider(calibration: Calibration | None) -> Decider:
    """Makes every decision for which the run has enough held-out labels and reference features."""
    wishes = Wishes(ood=calibration is not None and calibration.novelty is not None)
    try:
        return Decider(calibration, replace(wishes, abstain=ABSTAIN))
    except NPMatchError:  # too few labels were held out
        return Decider(calibration, wishes)


def explain_decisions(decisions: Decisions, decider: Decider) -> list[dict[str, Any]]:
    """Sentences about one image's decisions, warnings first."""
    remarks = []
    if decisions.ood is not None and decisions.ood_score is not None:
        is_novel, score = bool(decisions.ood[0]), float(decisions.ood_score[0])
        text = "Unlike the images the model was trained on" if is_novel else "It resembles the training images"
        end = ": do not rely on this answer." if is_novel else "."
        remarks.append({"text": f"{text} (novelty {score:.2f}, limit {decider.limit:.2f}){end}", "serious": is_novel})
    if decisions.withheld is not None:
        is_withheld = bool(decisions.withheld[0])
        outcome = "be withheld: a person should decide." if is_withheld else "not be withheld."
        text = f"To keep the error below {ABSTAIN:.0%}, this answer would {outcome}"
        remarks.append({"text": text, "serious": is_withheld})
    if decisions.temperature is not None:
        text = f"Probabilities are calibrated on {decider.calibration.n} held-out labels."
        remarks.append({"text": text, "serious": False})
    return sorted(remarks, key=lambda remark: not remark["serious"])


def describe_answer(decisions: Decisions, decider: Decider, class_names: Sequence[str]) -> dict[str, Any]:
    """The prediction for one image: likeliest classes, uncertainty, and what calibration says about it."""
    prediction = decisions.prediction
    probabilities, order = prediction.probs[0].topk(min(CLASSES_SHOWN, len(class_names)))
    return {
        "classes": [
            {"label": k, "probability": p} for k, p in zip(order.tolist(), probabilities.tolist(), strict=True)
        ],
        **describe_uncertainty(float(prediction.entropy[0]), len(class_names)),
        "disagreement": None if prediction.disagreement is None else float(prediction.disagreement[0]),
        "remarks": explain_decisions(decisions, decider),
    }


def encode_image(store: ImageStore, position: int) -> tuple[bytes, str]:
    """One image of a store as PNG or JPEG, and its media type."""
    image = read_for_display(store, position)
    buffer = io.BytesIO()
    is_small = is_crisp(image)
    as_picture(image).save(buffer, "PNG" if is_small else "JPEG", quality=88)  # PNG ignores the quality
    return buffer.getvalue(), "image/png" if is_small else "image/jpeg"


def read_for_display(store: ImageStore, position: int) -> Tensor:
    """An image, uint8 C H W: from its file at a size people can look at, or as stored where it has no file."""
    channels, side, _ = store.shape
    file = file_of(store, position)
    if file is not None:
        return decode_image(file, max(LARGEST_SIDE, side), channels)
    return store.take(torch.tensor([position]))[0]


@dataclass(frozen=True)
class NearestNeighbours:
    """Labelled training images and their features, searched by cosine similarity."""

    positions: Tensor  # n, int64: in the training set
    labels: Tensor  # n, int64
    features: Tensor  # n F, of length 1

    def nearest(self, features: Tensor, count: int) -> list[tuple[int, int, float]]:
        """(position, label, cosine similarity) of the `count` images nearest to features F, nearest first."""
        similarity = self.features @ normalize(features, dim=0)
        values, index = similarity.topk(min(count, len(similarity)))
        columns = (self.positions[index].tolist(), self.labels[index].tolist(), values.tolist())
        return list(zip(*columns, strict=True))


def index_labeled_images(classifier: Classifier, train: ImageSet, split: Split) -> NearestNeighbours:
    """Computes the features of the run's labelled training images."""
    positions = split.labeled
    if len(positions) > MAX_NEIGHBOURS:
        generator = torch.Generator().manual_seed(mix(split.seed, "neighbours"))
        sample = torch.randperm(len(positions), generator=generator)[:MAX_NEIGHBOURS]
        positions = positions[sample].sort().values
    images = SelectedImages(train.images, positions)
    _, features = describe_store(classifier.model, images, classifier.spec, classifier.device, BATCH, workers=0)
    return NearestNeighbours(positions, train.labels[positions], normalize(features, dim=1))
