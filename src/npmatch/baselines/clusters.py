"""Classes as clusters: all images say where the clusters are, and the labelled ones which class each of them is.

    z = Vᵀ(f − f̄) / λ^(3/8), scaled to length 1        along the directions V of largest variance λ, half whitened
    p_c(z) ∝ exp(−20 ‖z − μ_c‖²)                         each labelled image has p = 1 for its own class
    μ_c ← μ_c + (Σᵢ p_c(zᵢ) zᵢ / Σᵢ p_c(zᵢ) − μ_c) / 5    from the mean of the labelled images on

After Hu et al., Leveraging the Feature Distribution in Transfer-based Few-Shot Learning, ICANN 2021. Paper: classes are
made equally large by optimal transport; here: they are not, because the classes of a user's images seldom are, and some
images may be of none. Paper: the square root of each feature; here: half whitening, because the outputs of a network's
stages may be negative. The numbers were chosen on EuroSAT and CIFAR-10, seeds 10–13.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

DIRECTIONS = 64
HALF_WHITENING = 3 / 8  # power of the variances; 1/2 would whiten
SHARPNESS = 20.0
RATE = 0.2
STEPS = 20  # in which the clusters are found
# For labels to learn from: with more steps the means are drawn to clusters of images of no known class, where there are
# such, and the surest images of a class are no better.
FEW_STEPS = 8


class Clusters:
    """A classifier with scikit-learn's methods, for features of length 1."""

    def __init__(self, steps: int = STEPS) -> None:
        """`steps` is how often the means are moved."""
        self.steps = steps

    def fit(self, features: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> Clusters:
        """Features N D and labels N, of which −1 says that there is none."""
        f = torch.from_numpy(features)
        self.centre = f.mean(0)
        self.directions = half_whitening(f - self.centre)
        self.classes_, rows = np.unique(y[y >= 0], return_inverse=True)
        is_labeled = torch.from_numpy(y >= 0)
        given = one_hot(torch.from_numpy(rows), len(self.classes_)).to(f.dtype)
        z = self._embed(f)
        self.means = (given.T @ z[is_labeled]) / given.sum(0)[:, None]
        for _ in range(self.steps):
            p = self._posterior(z)
            p[is_labeled] = given
            self.means += RATE * ((p.T @ z) / p.sum(0)[:, None] - self.means)
        return self

    def predict_proba(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Probabilities n K of features n D, in the order of `classes_`."""
        found: npt.NDArray[np.float32] = self._posterior(self._embed(torch.from_numpy(features))).numpy()
        return found

    def _embed(self, f: Tensor) -> Tensor:
        return normalize((f - self.centre) @ self.directions, dim=-1)

    def _posterior(self, z: Tensor) -> Tensor:
        return (-SHARPNESS * torch.cdist(z, self.means).square()).softmax(-1)


def half_whitening(f: Tensor) -> Tensor:
    """The directions of largest variance of centred features N D, each divided by a power of it: D d."""
    variance, directions = torch.linalg.eigh((f.T @ f).double() / max(1, len(f)))
    kept = slice(-min(DIRECTIONS, max(1, len(f) - 1)), None)
    least = 1e-6 * float(variance[-1]) + torch.finfo(f.dtype).tiny  # where images are few or alike, the rest is noise
    found: Tensor = directions[:, kept] / variance[kept].clamp(min=least) ** HALF_WHITENING
    return found.to(f.dtype)


def surest(features: Tensor, y: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """Unlabelled images whose cluster is clear: at most `each` of every class, as positions and labels.

    `features` N D, and labels `y` N, of which −1 says that there is none.
    """
    unit = normalize(features.float(), dim=-1).cpu().numpy()
    clusters = Clusters(FEW_STEPS).fit(unit, y.cpu().numpy())
    confidence, row = torch.from_numpy(clusters.predict_proba(unit)).max(-1)
    confidence[y.cpu() >= 0] = -1
    order = confidence.argsort(descending=True, stable=True)
    order = order[confidence[order] >= 0]
    found = torch.cat([order[row[order] == c][:each] for c in range(len(clusters.classes_))])
    return found, torch.from_numpy(clusters.classes_)[row[found]]
