"""The plain head: one linear layer, a softmax, and the entropy of its prediction."""

from __future__ import annotations

from torch import Tensor, nn

from npmatch.objectives.losses import entropy
from npmatch.types import Prediction


class LinearHead(nn.Linear):
    """Logits of pooled features."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        """Xavier-normal weights and a zero bias, as in the FixMatch family."""
        super().__init__(num_features, num_classes)
        nn.init.xavier_normal_(self.weight)
        nn.init.zeros_(self.bias)

    def predict(self, features: Tensor) -> Prediction:
        """N F → class probabilities and their entropy."""
        probs = self(features).softmax(-1)
        return Prediction(probs, entropy(probs))
