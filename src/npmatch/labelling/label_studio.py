"""Label Studio's files: suggestions as tasks to import, and what it exports as labels.

A task names its image twice: `image` is what the browser loads, `path` what npmatch knows it by, which comes back
untouched in every export.
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

CONTROL, IMAGE = "label", "image"  # names in the labelling interface
LOCAL_FILES = "/data/local-files/?d="


def local_file(path: Path, root: Path) -> str:
    """The address under which Label Studio serves a file below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""
    return LOCAL_FILES + quote(str(path.relative_to(root)), errors="surrogateescape")


def make_task(suggestion: Suggestion, path: str, address: str, model: str) -> dict[str, Any]:
    """A suggestion as a task, with the model's answer as a prediction to accept or to change."""
    answer = {"from_name": CONTROL, "to_name": IMAGE, "type": "choices", "value": {"choices": [suggestion.predicted]}}
    return {
        "data": {"image": address, "path": path, "reason": suggestion.reason},
        "predictions": [{"model_version": model, "score": suggestion.confidence, "result": [answer]}],
    }


def labelling_interface(class_names: Sequence[str]) -> str:
    """The XML to paste into the project's settings: one choice for each class."""
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in class_names)
    return (
        f'<View>\n  <Image name="{IMAGE}" value="$image"/>\n'
        f'  <Choices name="{CONTROL}" toName="{IMAGE}" choice="single" showInLine="true">\n{choices}\n  </Choices>\n'
        "</View>\n"
    )


def read_export(file: Path) -> Iterator[LabelRow]:
    """The labels of an export as JSON or JSON-MIN; tasks that were skipped have an empty one."""
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
        answers = _annotated(task) if "annotations" in task else _minimal(task)
        if len(answers) > 1:
            raise NPMatchError(f"{where}: labelled {' and '.join(sorted(answers))}; settle on one in Label Studio")
        yield LabelRow(where, _path(fields, where), next(iter(answers), ""))


def _annotated(task: dict[str, Any]) -> set[str]:
    """The choices of a task's annotations, those cancelled left out."""
    results = [result for a in task["annotations"] if not a.get("was_cancelled") for result in a.get("result", [])]
    return {choice for result in results for choice in result.get("value", {}).get("choices", [])}


def _minimal(task: dict[str, Any]) -> set[str]:
    """The choices of a task in JSON-MIN, under this interface's name or the one of Label Studio's own template."""
    found = task.get(CONTROL, task.get("choice", []))
    found = found.get("choices", []) if isinstance(found, dict) else found
    return {found} if isinstance(found, str) else set(found)


def _path(fields: dict[str, Any], where: str) -> str:
    """What npmatch wrote as `path`; of other tasks the local file."""
    if isinstance(fields.get("path"), str):
        return str(fields["path"])
    address = fields.get("image", "")
    if isinstance(address, str) and address.startswith(LOCAL_FILES):
        return unquote(address.removeprefix(LOCAL_FILES), errors="surrogateescape")
    raise NPMatchError(f"{where}: names no file; import the tasks that npmatch suggest --label-studio writes")
