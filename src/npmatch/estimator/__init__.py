"""scikit-learn's interface: `NPMatchClassifier().fit(X, y)` for arrays in memory."""

from npmatch.estimator.estimator import NPMatchClassifier

__all__ = ["NPMatchClassifier"]
