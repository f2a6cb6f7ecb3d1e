"""npmatch: from a folder of images of which a few are labelled to a classifier that says how sure it is.

run = npmatch.fit("digits-40", out="runs/digits")
prediction = npmatch.load("runs/digits").predict(images)
prediction.label, prediction.confidence, prediction.entropy
"""

from npmatch.algorithms import Algorithm, check_algorithm
from npmatch.experiment import Run, evaluate_run, fit
from npmatch.predict import Classifier, load
from npmatch.types import Batch, Dataset, ImageSet, NPMatchError, Prediction, Step, Task, Views
from npmatch.version import __version__

__all__ = [
    "Algorithm",
    "Batch",
    "Classifier",
    "Dataset",
    "ImageSet",
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
