"""One-vs-all detectors of outliers (Saito and Saenko, ICCV 2021) beside a classifier of the K known classes.

Detector k says whether an image is of class k. An image that the detector of its most probable class rejects is of no
known class: it is an outlier.
"""

from __future__ import annotations

from torch import Tensor, nn

from npmatch.objectives.losses import entropy, one_hot
from npmatch.types import Prediction

# Positions in dimension 1 of the detectors' log-probabilities log_o, N 2 K.
OUTLIER, INLIER = 0, 1


class OneVsAllHead(nn.Module):
    """A classifier of K classes and K binary detectors, both on the pooled features."""

    def __init__(self, classifier: nn.Module, detector: nn.Module) -> None:
        """`classifier` maps features N F to logits N K, `detector` to N 2K, the K of outliers first."""
        super().__init__()
        self.classifier = classifier
        self.detector = detector

    def forward(self, features: Tensor) -> Tensor:
        """The classifier's logits, N F → N K."""
        logits: Tensor = self.classifier(features)
        return logits

    def detect(self, features: Tensor) -> Tensor:
        """The detectors' log-probabilities, N F → N 2 K."""
        return detector_log_probs(self.detector(features))

    def predict(self, features: Tensor) -> Prediction:
        """N F → class probabilities, their entropy, and the rejection by the detector of the most probable class."""
        probs = self(features).softmax(-1)
        return Prediction(probs, entropy(probs), outlier=outlier_score(self.detect(features), probs.argmax(-1)))


def linear_detector(num_features: int, num_classes: int) -> nn.Linear:
    """F → 2K without bias, Xavier-normal weights."""
    layer = nn.Linear(num_features, 2 * num_classes, bias=False)
    nn.init.xavier_normal_(layer.weight)
    return layer


def detector_log_probs(logits: Tensor) -> Tensor:
    """N 2K → N 2 K: for each class the log-probabilities of an outlier and of an inlier."""
    return logits.view(-1, 2, logits.shape[1] // 2).log_softmax(1)


def outlier_score(log_o: Tensor, label: Tensor) -> Tensor:
    """N: the probability that the detector of each image's class `label` rejects it."""
    return log_o[:, OUTLIER].gather(1, label[:, None]).squeeze(1).exp()


def one_vs_all_loss(log_o: Tensor, y: Tensor) -> Tensor:
    """−log o_y + max_{k≠y} −log ō_k, mean over images, 0-d: of the other classes' detectors the worst one learns."""
    own = one_hot(y, log_o.shape[-1])
    positive = -(own * log_o[:, INLIER]).sum(-1)
    negative = -((1 - own) * log_o[:, OUTLIER]).amin(-1)  # own class: 0, the least that any can be
    return (positive + negative).mean()


def detector_entropy(log_o: Tensor) -> Tensor:
    """Entropy of the binary detectors in nats, mean over classes and images, 0-d."""
    return -(log_o.exp() * log_o).sum(1).mean()


def detector_consistency(log_o: Tensor, log_other: Tensor) -> Tensor:
    """Squared differences of the detectors' probabilities between two views, summed over 2 K, mean over images."""
    return (log_o.exp() - log_other.exp()).square().sum((1, 2)).mean()
