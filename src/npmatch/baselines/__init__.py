"""Baselines: classifiers on the features of a pretrained network, of which nothing is trained.

Training that starts from pretrained weights is worth its time only if it beats them. Features are scaled to length 1:
distances between them are then those of cosines, and one regularisation suits every network. The numbers were chosen
on EuroSAT, seeds 10–13, at 2, 4 and 25 labels per class (docs/algorithms.md, "Baselines").
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from npmatch.baselines.clusters import Clusters, surest
from npmatch.types import Prediction

__all__ = ["BASELINES", "Baseline", "out_of_fold", "out_of_fold_error", "surest"]

FOLDS = 5  # of the estimate without test images; fewer where no class has as many labels


@dataclass(frozen=True)
class Baseline:
    """A classifier with scikit-learn's methods, and what it learns from."""

    make: Callable[[int], Any]  # number of images to fit → the classifier
    uses_unlabeled: bool = False

    def predict(self, f_labeled: Tensor, y: Tensor, f: Tensor, num_classes: int, f_unlabeled: Tensor) -> Prediction:
        """The prediction of images with features `f` (N F), after a fit to labelled features and labels `y`."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

        if self.uses_unlabeled:
            f_labeled = torch.cat([f_labeled, f_unlabeled])
            y = torch.cat([y, y.new_full((len(f_unlabeled),), -1)])
        classifier = self.make(len(y))
        # So small a fit takes twenty times as long on two threads as on one, if their cores have other work.
        with threadpool_limits(1, "blas"), np.errstate(invalid="ignore"):
            classifier.fit(_unit(f_labeled), y.numpy())
            found = np.nan_to_num(classifier.predict_proba(_unit(f)))
        probs = torch.zeros(len(f), num_classes)
        probs[:, torch.from_numpy(classifier.classes_)] = torch.from_numpy(found).float()
        probs[probs.sum(-1) == 0] = 1 / num_classes  # no label reaches these images in the graph of neighbours
        probs /= probs.sum(-1, keepdim=True)
        return Prediction(probs, torch.special.entr(probs).sum(-1))


def _unit(f: Tensor) -> npt.NDArray[np.float32]:
    """The features scaled to length 1."""
    scaled: npt.NDArray[np.float32] = normalize(f.float(), dim=-1).numpy()
    return scaled


def _logistic_regression(images: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=300, max_iter=1000)


def _nearest_neighbours(images: int) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(min(5, images), metric="cosine", weights="distance")


def _label_spreading(images: int) -> Any:
    from sklearn.semi_supervised import LabelSpreading

    neighbours = min(20, max(5, images // 20), images)  # a graph of few images that joins all of them says nothing
    return LabelSpreading(kernel="knn", n_neighbors=neighbours, alpha=0.5, max_iter=100)


def _clusters(images: int) -> Any:
    return Clusters()


BASELINES = {
    "probe": Baseline(_logistic_regression),
    "neighbours": Baseline(_nearest_neighbours),
    "spreading": Baseline(_label_spreading, uses_unlabeled=True),
    "clusters": Baseline(_clusters, uses_unlabeled=True),
}


def out_of_fold_error(baseline: Baseline, f: Tensor, y: Tensor, num_classes: int, seed: int) -> float | None:
    """Error in % of labelled images, each predicted by a fit without its fold; None if no class has two labels.

    Images that are the only one of their class do not count, as nothing else shows what their class looks like.
    """
    rows, predicted = out_of_fold(baseline, f, y, num_classes, seed)
    return 100 * float((predicted != y[rows]).double().mean()) if len(rows) else None


def out_of_fold(baseline: Baseline, f: Tensor, y: Tensor, num_classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of labelled images, and the label that a fit without its fold predicts for each; none without two alike.

    The folds are drawn with `seed`; images that are the only one of their class are left out.
    """
    from sklearn.model_selection import StratifiedKFold

    folds = min(FOLDS, int(y.bincount().max())) if len(y) else 0
    rows, labels = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    if folds < 2:
        return rows[0], labels[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes with fewer labels than there are folds
        for rest, fold in StratifiedKFold(folds, shuffle=True, random_state=seed).split(f, y):
            fold = fold[np.isin(y[fold], y[rest])]
            found = baseline.predict(f[rest], y[rest], f[fold], num_classes, f[:0])
            rows.append(torch.from_numpy(fold))
            labels.append(found.label)
    return torch.cat(rows), torch.cat(labels)
