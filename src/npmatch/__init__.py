"""npmatch: from a folder of images of which a few are labelled to a classifier that says how sure it is.

run = npmatch.fit("digits-40", out="runs/digits")
prediction = npmatch.load("runs/digits").predict(images)
prediction.label, prediction.confidence, prediction.entropy

A public name is imported when it is first used: `import npmatch` and `npmatch --help` do not wait for torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npmatch.algorithms import Algorithm, check_algorithm
    from npmatch.data import ArrayImages, FileImages
    from npmatch.decide import Calibration, Decisions
    from npmatch.errors import NPMatchError
    from npmatch.estimator import NPMatchClassifier
    from npmatch.predict.classifier import Classifier
    from npmatch.runs.evaluate import Evaluation, evaluate_run
    from npmatch.runs.fit import Run, fit
    from npmatch.runs.open import load
    from npmatch.types import Batch, Dataset, ImageSet, ImageStore, Prediction, Step, Task, Views
    from npmatch.version import __version__

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

_MODULES = {  # public name → the module it is imported from
    "Algorithm": "npmatch.algorithms",
    "ArrayImages": "npmatch.data",
    "Batch": "npmatch.types",
    "Calibration": "npmatch.decide",
    "Classifier": "npmatch.predict.classifier",
    "Dataset": "npmatch.types",
    "Decisions": "npmatch.decide",
    "Evaluation": "npmatch.runs.evaluate",
    "FileImages": "npmatch.data",
    "ImageSet": "npmatch.types",
    "ImageStore": "npmatch.types",
    "NPMatchClassifier": "npmatch.estimator",
    "NPMatchError": "npmatch.errors",
    "Prediction": "npmatch.types",
    "Run": "npmatch.runs.fit",
    "Step": "npmatch.types",
    "Task": "npmatch.types",
    "Views": "npmatch.types",
    "__version__": "npmatch.version",
    "check_algorithm": "npmatch.algorithms",
    "evaluate_run": "npmatch.runs.evaluate",
    "fit": "npmatch.runs.fit",
    "load": "npmatch.runs.open",
}

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name

    def __getattr__(name):
        """Import a public name on its first use (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module 'npmatch' has no attribute '{name}'")
        from importlib import import_module

        globals()[name] = found = getattr(import_module(_MODULES[name]), name)
        return found

    def __dir__():
        """The public names, imported or not, besides what the module holds already."""
        return sorted({*globals(), *__all__})
