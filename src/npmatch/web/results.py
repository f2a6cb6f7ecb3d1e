"""How good a model of a folder is: its error, what it takes for what, and what withholding answers would bring.

The error is measured where there are test images. Otherwise it is estimated, and said to be: for the quick look from
labels that it has not seen, for a round by that and by the model's own confidence.
"""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from npmatch.data import FileImages
from npmatch.data.split import OtherDataError
from npmatch.errors import NPMatchError
from npmatch.metrics import clopper_pearson
from npmatch.predict.classifier import Classifier
from npmatch.report.audited import EstimatedError
from npmatch.report.formatting import printable
from npmatch.report.gallery import LARGEST_SIDE
from npmatch.runs.estimate import estimate_from, estimate_on
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import load, open_run_data
from npmatch.types import Prediction
from npmatch.web.answer import encode_image
from npmatch.web.project import Project
from npmatch.web.rounds import stamp_of

LEVEL = 0.9  # probability with which the interval holds the error
KEPT = (1.0, 0.9, 0.8, 0.5)  # shares of the answers that are given
MOST_PAIRS, MOST_PICTURES = 8, 8  # pairs of classes, and pictures of each

Mistakes = dict[tuple[str, str], list[dict[str, int]]]  # true class, predicted class → pictures


def describe_results(project: Project, name: str) -> dict[str, Any]:
    """The results of a round, or of the quick look if `name` is empty."""
    if not name:
        return _of_quick_look(project)
    run = project.rounds.folder(name)
    if not run.is_finished():
        raise NPMatchError(f"{name}: has no model yet")
    predictions = run.read_test_predictions()
    measured = None if predictions is None else _measured(*predictions, run.read_test_names())
    return {"round": name, "commands": _commands(project, run), **(measured or _estimated(project))}


def _commands(project: Project, run: RunFolder) -> dict[str, str]:
    path = shlex.quote(str(run))
    predict = f"npmatch predict {path} new -o predictions.csv"
    return {"evaluate": f"npmatch evaluate {path}", "predict": predict, "export": f"npmatch export {path}"}


def _measured(prediction: Prediction, y: torch.Tensor, names: list[str], images: list[str]) -> dict[str, Any]:
    """The results on test images."""
    wrong = prediction.label != y
    errors, n = int(wrong.sum()), len(y)
    limits = clopper_pearson(errors, n, LEVEL)
    mistakes: Mistakes = defaultdict(list)
    for row in wrong.nonzero().flatten().tolist():
        if row < len(images):
            mistakes[names[y[row]], names[prediction.label[row]]].append({"test": row})
    return {
        "error": 100 * errors / n,
        "low": 100 * limits.low,
        "high": 100 * limits.high,
        "level": LEVEL,
        "images": n,
        "basis": "test",
        "confusions": _sorted(mistakes),
        "kept": _errors_of_kept(prediction.entropy.numpy(), wrong.numpy().astype(np.float64)),
    }


def _estimated(project: Project) -> dict[str, Any]:
    """The results of a round without test images, as the quick look has them: its error on labels it has not seen.

    The labels that the round was trained on say nothing about it. The other estimate, by the model's own confidence, is
    `estimate`: it takes longer.
    """
    look = project.quick_look
    found: dict[str, Any] = {"basis": "between", "quick_look": None, "confusions": [], "kept": []}
    if look is not None:
        judged = look.judged
        found |= {"quick_look": _share_wrong(judged), "confusions": _sorted(_mistakes_of(judged))}
    return found


class Estimates:
    """The errors of rounds by the models' own confidence on the unlabelled pictures, as the report has them."""

    def __init__(self, project: Project) -> None:
        """Computes nothing yet."""
        self.project = project
        self._found: dict[tuple[str, int], dict[str, Any]] = {}  # by round and time of its model

    def of(self, name: str) -> dict[str, Any]:
        """The estimate of a round, in %; it is computed once."""
        run = self.project.rounds.folder(name)
        key = name, stamp_of(run.model_weights)[0]
        if key not in self._found:
            found = self._estimate(load(run.path, self.project.device), run)
            self._found[key] = {
                "error": None if found is None else found.error,
                "source": "there is no picture without a label" if found is None else found.source,
            }
        return {**self._found[key], "command": f"npmatch audit {shlex.quote(str(run))}"}

    def _estimate(self, classifier: Classifier, run: RunFolder) -> EstimatedError | None:
        try:
            return estimate_from(classifier, open_run_data(run.path))
        except OtherDataError:  # the folder has got other pictures since: those that have no label now will do
            desk, spec = self.project.desk, classifier.spec
            paths = [desk.paths[row] for row in desk.rows_in("todo").nonzero()[0]]
            images = FileImages(paths, spec.stored_side, spec.channels)
            return estimate_on(classifier, images, run.read_config().training.eval_batch)


def _of_quick_look(project: Project) -> dict[str, Any]:
    """The results of the quick look, judged out of fold on the labels."""
    look = project.quick_look
    if look is None:
        raise NPMatchError("there is no quick look yet: label pictures of two classes first")
    judged = look.judged
    facts: dict[str, Any] = {"round": "", "images": len(judged), "basis": "folds", "kept": [], "commands": {}}
    return {**facts, "error": _share_wrong(judged), "confusions": _sorted(_mistakes_of(judged))}


def _share_wrong(judged: list[tuple[int, str, str]]) -> float | None:
    return 100 * sum(true != taken for _, true, taken in judged) / len(judged) if judged else None


def _mistakes_of(judged: list[tuple[int, str, str]]) -> Mistakes:
    mistakes: Mistakes = defaultdict(list)
    for picture, true, predicted in judged:
        if true != predicted:
            mistakes[true, predicted].append({"image": picture})
    return mistakes


def _sorted(mistakes: Mistakes) -> list[dict[str, Any]]:
    """The pairs of classes that are confused most, with some of the pictures."""
    pairs = sorted(mistakes.items(), key=lambda pair: -len(pair[1]))[:MOST_PAIRS]
    return [
        {"true": printable(true), "predicted": printable(taken), "count": len(rows), "images": rows[:MOST_PICTURES]}
        for (true, taken), rows in pairs
    ]


def _errors_of_kept(uncertainty: npt.NDArray[np.float32], wrong: npt.NDArray[np.float64]) -> list[dict[str, float]]:
    """The error in % among the most certain answers, for several shares of them."""
    ordered = wrong[np.argsort(uncertainty, kind="stable")]
    counts = {share: round(share * len(ordered)) for share in KEPT}
    return [{"kept": share, "error": 100 * float(ordered[:n].mean())} for share, n in counts.items() if n]


def picture_of_test(project: Project, name: str, row: int) -> tuple[bytes, str]:
    """A test image of a round as PNG or JPEG, and its media type."""
    names = project.rounds.folder(name).read_test_names()
    if not 0 <= row < len(names):
        raise NPMatchError(f"test image {row}: there is none of this number")
    file, root = os.path.realpath(project.folder / names[row]), os.path.realpath(project.folder)
    if os.path.commonpath([file, root]) != root:  # a run from elsewhere must not show other files
        raise NPMatchError(f"test image {row}: lies outside {project.folder}")
    return encode_image(FileImages([file], LARGEST_SIDE), 0)


def export_model(project: Project, name: str) -> None:
    """Writes RUN/model.onnx, unless it is there already."""
    from npmatch.predict.export import export_onnx

    run = project.rounds.folder(name)
    file = run.path / "model.onnx"
    if not file.is_file() or file.stat().st_mtime < run.model_weights.stat().st_mtime:
        export_onnx(load(run.path, "cpu"), file)


def exported_model(project: Project, name: str) -> bytes:
    """The content of RUN/model.onnx."""
    file = project.rounds.folder(name).path / "model.onnx"
    if not file.is_file():
        raise NPMatchError(f"{name}: was not exported yet")
    return file.read_bytes()
