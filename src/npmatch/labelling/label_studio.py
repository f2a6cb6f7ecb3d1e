"""Label Studio's files: suggestions as tasks to import, and its exports as labels.

A task names its image twice: `image` is the address that the browser loads, `path` is the path for npmatch, which Label
Studio returns unchanged in every export.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import quoteattr

from npmatch.data.labels import LabelRow
from npmatch.errors import NPMatchError
from npmatch.labelling.suggest import Suggestion

CONTROL, IMAGE = "label", "image"  # names of the controls in the labelling interface
LOCAL_FILES = "/data/local-files/?d="


def local_file(path: Path, root: Path) -> str:
    """The address under which Label Studio serves a file below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""
    return LOCAL_FILES + quote(str(path.relative_to(root)), errors="surrogateescape")


def make_task(suggestion: Suggestion, path: str, address: str, model: str) -> dict[str, Any]:
    """A suggestion as a task, with the predicted class as a proposal; `model` is stored as the model's version."""
    proposal = {"from_name": CONTROL, "to_name": IMAGE, "type": "choices", "value": {"choices": [suggestion.predicted]}}
    return {
        "data": {"image": address, "path": path, "reason": suggestion.reason},
        "predictions": [{"model_version": model, "score": suggestion.confidence, "result": [proposal]}],
    }


def labelling_interface(class_names: Sequence[str]) -> str:
    """The labelling interface, XML to paste into the project's settings, with one choice for each class."""
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in class_names)
    return (
        f'<View>\n  <Image name="{IMAGE}" value="$image"/>\n'
        f'  <Choices name="{CONTROL}" toName="{IMAGE}" choice="single" showInLine="true">\n{choices}\n  </Choices>\n'
        "</View>\n"
    )


def read_export(file: Path) -> Iterator[LabelRow]:
    """The labels in an export as JSON or JSON-MIN; a task that was skipped has an empty label."""
    try:
        tasks = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise NPMatchError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise NPMatchError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise NPMatchError(f"{file}: not an export of Label Studio; export the project as JSON or JSON-MIN")
    for number, task in enumerate(tasks, 1):
        where = f"{file}, task {task.get('id', number)}"
        fields = task.get("data", task)
        labels = _annotated(task) if "annotations" in task else _minimal(task)
        if len(labels) > 1:
            raise NPMatchError(f"{where}: labelled {' and '.join(sorted(labels))}; settle on one in Label Studio")
        yield LabelRow(where, _path(fields, where), next(iter(labels), ""))


def _annotated(task: dict[str, Any]) -> set[str]:
    """The labels in the annotations of a task, except cancelled ones."""
    results = [result for a in task["annotations"] if not a.get("was_cancelled") for result in a.get("result", [])]
    return {choice for result in results for choice in result.get("value", {}).get("choices", [])}


def _minimal(task: dict[str, Any]) -> set[str]:
    """The labels of a task in JSON-MIN, under the name in our interface or in Label Studio's own template."""
    choices = task.get(CONTROL, task.get("choice", []))
    choices = choices.get("choices", []) if isinstance(choices, dict) else choices
    return {choices} if isinstance(choices, str) else set(choices)


def _path(fields: dict[str, Any], where: str) -> str:
    """The `path` that npmatch wrote; for other tasks, the path of the local file in the address."""
    if isinstance(fields.get("path"), str):
        return str(fields["path"])
    address = fields.get("image", "")
    if isinstance(address, str) and address.startswith(LOCAL_FILES):
        return unquote(address.removeprefix(LOCAL_FILES), errors="surrogateescape")
    raise NPMatchError(f"{where}: names no file; import the tasks that npmatch suggest --label-studio writes")
