"""AUROC of outliers against scikit-learn's."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from npmatch.metrics import auroc, outlier_auroc
from npmatch.types import Prediction


@pytest.mark.parametrize("digits", [1, 6])  # with one digit most scores are equal to others
@pytest.mark.parametrize("has_outlier", [False, True])
def test_it_is_scikit_learns(digits, has_outlier):
    g = torch.Generator().manual_seed(0)
    known, foreign = torch.rand(50, generator=g).round(decimals=digits), torch.rand(70, generator=g).sqrt()
    foreign = foreign.round(decimals=digits)

    def prediction(score):
        entropy = torch.zeros(len(score)) if has_outlier else score
        return Prediction(torch.full((len(score), 2), 0.5), entropy, outlier=score if has_outlier else None)

    expected = roc_auc_score([0] * 50 + [1] * 70, torch.cat([known, foreign]))
    assert outlier_auroc(prediction(known), prediction(foreign)) == pytest.approx(100 * expected)


def test_it_takes_any_score():
    low, high = torch.tensor([0.1, 0.4, 0.4]), torch.tensor([0.4, 0.9])
    assert auroc(low, high) == pytest.approx(100 * roc_auc_score([0, 0, 0, 1, 1], torch.cat([low, high])))
