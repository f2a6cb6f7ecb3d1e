"""scikit-learn's way in: `NPMatchClassifier().fit(X, y)`, where y = −1 marks what is unlabelled."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from npmatch.algorithms import Algorithm
from npmatch.distributed.devices import choose_device
from npmatch.estimator.arrays import Array, Rows, flatten, train_on_arrays, understand
from npmatch.predict.classifier import Classifier
from npmatch.types import Prediction

UNLABELED = -1


class NPMatchClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Semi-supervised image classifier with uncertainty, for arrays; nothing is written to disk.

    Args:
        algorithm: a name (`npmatch`, `fixmatch`, `supervised`, …) or `package.module:Class`.
        iterations: training steps.
        device: `cpu` or `cuda`; None takes CUDA where there is one.
        image_shape: (h, w) or (h, w, c) of images that come as flat rows.
        warm_start: whether a further `fit` goes on from the weights of the one before.
        random_state: an integer makes two fits equal.

    Attributes:
        classes_: the labels, in the order of the probabilities.
        n_features_in_: numbers in a row, h · w · c.
        n_iter_: training steps of the last fit.
        image_shape_: (h, w, c), or None where the rows are features.
        classifier_: the trained `npmatch.Classifier`, which can be saved and exported.
    """

    classes_: Array
    n_features_in_: int
    n_iter_: int
    image_shape_: tuple[int, int, int] | None
    rows_: Rows
    algorithm_: Algorithm
    classifier_: Classifier

    def __init__(
        self,
        algorithm: str = "npmatch",
        iterations: int = 1500,
        device: str | None = None,
        image_shape: tuple[int, ...] | None = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        """The parameters are only stored; `fit` looks at them."""
        self.algorithm = algorithm
        self.iterations = iterations
        self.device = device
        self.image_shape = image_shape
        self.warm_start = warm_start
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> NPMatchClassifier:
        """Learns from images n h w [c] or rows n d, and their labels n, of which −1 means unlabelled."""
        if self.iterations < 1:
            raise ValueError(f"iterations={self.iterations}: must be at least 1")
        goes_on = self.warm_start and hasattr(self, "algorithm_")
        flat, shape = flatten(X, self.image_shape)
        flat, y = validate_data(self, flat, as_labels(y), reset=not goes_on)
        classes, numbers = number_labels(y)
        if goes_on and not np.array_equal(classes, self.classes_):
            raise ValueError("warm_start: the classes are not those of the fit before; fit a clone instead")
        rows = self.rows_ if goes_on else understand(flat, shape)
        trained = train_on_arrays(
            rows,
            rows.pixels(flat),
            torch.from_numpy(numbers),
            class_names=tuple(map(str, classes)),
            algorithm=self.algorithm,
            iterations=self.iterations,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            device=choose_device(self.device),
            before=self.algorithm_ if goes_on else None,
        )
        self.rows_, self.image_shape_, self.classes_, self.n_iter_ = rows, rows.image_shape, classes, self.iterations
        self.algorithm_ = trained.algorithm
        self.classifier_ = Classifier(trained.algorithm.model, trained.spec, choose_device(self.device))
        return self

    def predict(self, X: Any) -> Array:
        """The likeliest class of each image, n."""
        chosen = self._ask(X).label.numpy()
        labels: Array = self.classes_[chosen]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """Probabilities n K, in the order of `classes_`."""
        probs = self._ask(X).probs.double()
        normalised: Array = (probs / probs.sum(1, keepdim=True)).numpy()
        return normalised

    def predict_uncertainty(self, X: Any) -> Array:
        """The entropy of each prediction in nats, n: 0 is certain, log K knows nothing."""
        entropy: Array = self._ask(X).entropy.double().numpy()
        return entropy

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy on the images whose label is known."""
        y = np.asarray(as_labels(y))
        known = ~unlabeled(y)
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(y[known], self.predict(X)[known], sample_weight=weight))

    def _ask(self, X: Any) -> Prediction:
        check_is_fitted(self)
        flat, _ = flatten(X, self.image_shape_)
        flat = validate_data(self, flat, reset=False)
        return self.classifier_.predict(self.rows_.pixels(flat))

    def __sklearn_tags__(self) -> Any:
        """Images come as arrays of three dimensions, too."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Weights travel as CPU tensors, so that a machine without CUDA can unpickle them."""
        state = dict(super().__getstate__())
        if "classifier_" in state and self.classifier_.device.type != "cpu":
            algorithm = deepcopy(self.algorithm_).cpu()
            state["algorithm_"] = algorithm
            state["classifier_"] = Classifier(algorithm.model, self.classifier_.spec, torch.device("cpu"))
        return state


def as_labels(y: Any) -> Any:
    """A list in which names and −1 stand side by side keeps its −1, of which numpy would make a name."""
    if isinstance(y, list | tuple) and any(isinstance(label, str) for label in y):
        return np.array(y, dtype=object)
    return y


def unlabeled(y: Array) -> Array:
    """n, bool: −1, also as the text that numpy makes of it among names."""
    if y.dtype.kind in "OUST":
        return np.array([label in (UNLABELED, str(UNLABELED)) for label in y], dtype=bool)
    return np.equal(y, UNLABELED)


def number_labels(y: Array) -> tuple[Array, Array]:
    """The K classes, and each image's class as a number, n, −1 where it is unlabelled."""
    known = ~unlabeled(y)
    given = y[known]
    if given.dtype == object:
        if len({isinstance(label, str) for label in given}) > 1:
            raise ValueError("y holds names and numbers; label with one kind, and −1 for unlabelled")
        given = np.array(given.tolist())
    if len(given):
        check_classification_targets(given)
    classes, number = np.unique(given, return_inverse=True)
    if len(classes) < 2:
        found = "one class" if len(classes) else "no label but −1, which means unlabelled"
        raise ValueError(f"labels of at least two classes are needed, but y holds {found}")
    numbers = np.full(len(y), UNLABELED, dtype=np.int64)
    numbers[known] = number
    return classes, numbers
