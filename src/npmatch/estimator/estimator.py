"""A scikit-learn classifier: `NPMatchClassifier().fit(X, y)`, where y = −1 marks unlabelled images."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from npmatch.algorithms import Algorithm
from npmatch.distributed.devices import choose_device
from npmatch.estimator.arrays import Array, Rows, detect_rows, flatten
from npmatch.estimator.training import train_on_arrays
from npmatch.predict.classifier import Classifier
from npmatch.types import Prediction

UNLABELED = -1


class NPMatchClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Semi-supervised image classifier with uncertainty, for arrays; nothing is written to disk.

    Args:
        algorithm: name of the algorithm (`npmatch`, `fixmatch`, `supervised`, …) or `package.module:Class`.
        iterations: number of training steps; None: as many as suit the images, the network and the device.
        device: `cpu` or `cuda`; None takes CUDA if it is available.
        image_shape: (h, w) or (h, w, c) of images that are passed as flat rows.
        warm_start: whether `fit` starts from the weights of the previous call.
        random_state: an integer makes fits reproducible.

    Attributes:
        classes_: the class labels, in the order of the probabilities.
        n_features_in_: number of values in a row, h · w · c for images.
        n_iter_: number of training steps of the last fit.
        image_shape_: (h, w, c) of the images, or None if the rows are features.
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
        iterations: int | None = None,
        device: str | None = None,
        image_shape: tuple[int, ...] | None = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        """Stores the parameters; `fit` validates them."""
        self.algorithm = algorithm
        self.iterations = iterations
        self.device = device
        self.image_shape = image_shape
        self.warm_start = warm_start
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> NPMatchClassifier:
        """Fit the model to images n h w [c], or rows n d, and their labels n, where −1 means unlabelled."""
        if self.iterations is not None and self.iterations < 1:
            raise ValueError(f"iterations={self.iterations}: must be at least 1")
        is_warm = self.warm_start and hasattr(self, "algorithm_")
        flat, shape = flatten(X, self.image_shape)
        flat, y = validate_data(self, flat, as_labels(y), reset=not is_warm)
        classes, indices = encode_labels(y)
        if is_warm and not np.array_equal(classes, self.classes_):
            raise ValueError("warm_start: the classes are not those of the previous fit; fit a clone instead")
        rows = self.rows_ if is_warm else detect_rows(flat, shape)
        trained = train_on_arrays(
            rows,
            rows.pixels(flat),
            torch.from_numpy(indices),
            class_names=tuple(map(str, classes)),
            algorithm=self.algorithm,
            iterations=self.iterations,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            device=choose_device(self.device),
            warm_start=self.algorithm_ if is_warm else None,
        )
        self.rows_, self.image_shape_, self.classes_, self.n_iter_ = (
            rows,
            rows.image_shape,
            classes,
            trained.iterations,
        )
        self.algorithm_ = trained.algorithm
        self.classifier_ = Classifier(trained.algorithm.model, trained.spec, choose_device(self.device))
        return self

    def predict(self, X: Any) -> Array:
        """Predict the class label of each image, n."""
        indices = self._predict(X).label.numpy()
        labels: Array = self.classes_[indices]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """Predict probabilities n K, in the order of `classes_`."""
        probs = self._predict(X).probs.double()
        normalised: Array = (probs / probs.sum(1, keepdim=True)).numpy()
        return normalised

    def predict_uncertainty(self, X: Any) -> Array:
        """Predict the uncertainty of each image, n: the entropy in nats, from 0 (certain) to log K."""
        entropy: Array = self._predict(X).entropy.double().numpy()
        return entropy

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on the labelled images; rows with y = −1 are ignored."""
        y = column_or_1d(as_labels(y), warn=True)
        labeled = ~unlabeled(y)
        weight = None if sample_weight is None else np.asarray(sample_weight)[labeled]
        return float(accuracy_score(y[labeled], self.predict(X)[labeled], sample_weight=weight))

    def _predict(self, X: Any) -> Prediction:
        """Validate images or rows, and predict them."""
        check_is_fitted(self)
        flat, _ = flatten(X, self.image_shape_)
        flat = validate_data(self, flat, reset=False)
        return self.classifier_.predict(self.rows_.pixels(flat))

    def __sklearn_tags__(self) -> Any:
        """Arrays of three dimensions (images) are accepted too."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Pickle weights as CPU tensors, so that a machine without CUDA can load them."""
        state = dict(super().__getstate__())
        if "classifier_" in state and self.classifier_.device.type != "cpu":
            algorithm = deepcopy(self.algorithm_).cpu()
            state["algorithm_"] = algorithm
            state["classifier_"] = Classifier(algorithm.model, self.classifier_.spec, torch.device("cpu"))
        return state


def as_labels(y: Any) -> Any:
    """Labels as validate_data takes them; a list of names and −1 becomes an object array, which keeps the number −1."""
    if isinstance(y, list | tuple) and any(isinstance(label, str) for label in y):
        return np.array(y, dtype=object)
    return y


def unlabeled(y: Array) -> Array:
    """Which of n labels mean unlabelled, n bool: −1, or the text "-1" that numpy makes of it among names."""
    if y.dtype.kind in "OUST":
        return np.array([label in (UNLABELED, str(UNLABELED)) for label in y], dtype=bool)
    return np.equal(y, UNLABELED)


def encode_labels(y: Array) -> tuple[Array, Array]:
    """The K classes, and the class index of each of n labels, −1 if unlabelled."""
    is_labeled = ~unlabeled(y)
    labels = y[is_labeled]
    if labels.dtype == object:
        if len({isinstance(label, str) for label in labels}) > 1:
            raise ValueError("y holds names and numbers; label with one kind, and −1 for unlabelled")
        labels = np.array(labels.tolist())
    if len(labels):
        check_classification_targets(labels)
    classes, labeled_indices = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        content = "one class" if len(classes) else "no label but −1, which means unlabelled"
        raise ValueError(f"labels of at least two classes are needed, but y holds {content}")
    indices = np.full(len(y), UNLABELED, dtype=np.int64)
    indices[is_labeled] = labeled_indices
    return classes, indices
