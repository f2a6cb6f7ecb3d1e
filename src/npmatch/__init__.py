"""npmatch: from a folder of images of which a few are labelled to a classifier that says how sure it is.

run = npmatch.fit("digits-40", out="runs/digits")
prediction = npmatch.load("runs/digits").predict(images)
prediction.label, prediction.confidence, prediction.entropy
"""

from typing import TYPE_CHECKING, Any

from npmatch.algorithms import Algorithm, check_algorithm
from npmatch.data import ArrayImages, FileImages
from npmatch.decide import Calibration, Decisions
from npmatch.errors import NPMatchError
from npmatch.predict.classifier import Classifier, load
from npmatch.runs.evaluate import Evaluation, evaluate_run
from npmatch.runs.fit import Run, fit
from npmatch.types import Batch, Dataset, ImageSet, ImageStore, Prediction, Step, Task, Views
from npmatch.version import __version__

if TYPE_CHECKING:
    from npmatch.estimator.estimator import NPMatchClassifier

__all__ = [
    "Algorithm",
    "ArrayImages",
    "Batch",
    "Calibration",
    "Classifier",
    "Dataset",
    "Decisions",
    "Evaluation",
    "FileImages",
    "ImageSet",
    "ImageStore",
    "NPMatchClassifier",
    "NPMatchError",
    "Prediction",
    "Run",
    "Step",
    "Task",
    "Views",
    "__version__",
    "check_algorithm",
    "evaluate_run",
    "fit",
    "load",
]


def __getattr__(name: str) -> Any:
    """The estimator is imported when it is asked for: the command line does without scikit-learn."""
    if name == "NPMatchClassifier":
        from npmatch.estimator.estimator import NPMatchClassifier

        return NPMatchClassifier
    raise AttributeError(f"module 'npmatch' has no attribute '{name}'")
