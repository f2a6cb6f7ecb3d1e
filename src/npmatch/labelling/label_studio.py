"""Label Studio's files: suggestions as tasks to import, and its exports as labels.

A task names its image twice: `image` is the address that the browser loads, `path` is the path for npmatch, which Label
Studio returns unchanged in every export.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote
from xml.sax.saxutils import quoteattr

from npmatch.data.labels import LabelRow
from npmatch.errors import NPMatchError

CONTROL, TYPED, IMAGE = "label", "class", "image"  # names of the controls in the labelling interface
LOCAL_FILES = "/data/local-files/?d="

T = TypeVar("T")


def local_file(path: Path, root: Path) -> str:
    """The address under which Label Studio serves a file below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""
    return LOCAL_FILES + quote(str(path.relative_to(root)), errors="surrogateescape")


def make_task(path: str, address: str, reason: str) -> dict[str, Any]:
    """A task to label an image, without a proposal."""
    return {"data": {"image": address, "path": path, "reason": reason}}


def proposal(predicted: str, confidence: float, model: str) -> dict[str, Any]:
    """What a task needs besides to propose a class; `model` is stored as the model's version."""
    choice = {"from_name": CONTROL, "to_name": IMAGE, "type": "choices", "value": {"choices": [predicted]}}
    return {"predictions": [{"model_version": model, "score": confidence, "result": [choice]}]}


def labelling_interface(class_names: Sequence[str], may_name_others: bool = False) -> str:
    """The labelling interface, XML to paste into the project's settings, with one choice for each class.

    With `may_name_others`, the name of a class can also be typed.
    """
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in class_names)
    chosen = (
        f'  <Choices name="{CONTROL}" toName="{IMAGE}" choice="single" showInLine="true">\n{choices}\n  </Choices>\n'
    )
    typed = f'  <TextArea name="{TYPED}" toName="{IMAGE}" maxSubmissions="1" placeholder="name of its class"/>\n'
    controls = (chosen if class_names else "") + (typed if may_name_others else "")
    return f'<View>\n  <Image name="{IMAGE}" value="$image"/>\n{controls}</View>\n'


def read_export(file: Path) -> Iterator[LabelRow]:
    """The labels in an export as JSON or JSON-MIN; a task that was skipped has an empty label."""
    try:
        tasks = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise NPMatchError(f"{file}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise NPMatchError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise NPMatchError(f"{file}: not an export of Label Studio; export the project as JSON or JSON-MIN")
    for number, task in enumerate(tasks, 1):
        where = f"{file}, task {task.get('id', number)}"
        try:
            labels = set(_annotated(task) if "annotations" in task else _minimal(task))
        except _MisshapenError as error:
            raise NPMatchError(f"{where}: {error}; export the project as JSON or JSON-MIN") from error
        if len(labels) > 1:
            raise NPMatchError(f"{where}: labelled {' and '.join(sorted(labels))}; settle on one in Label Studio")
        yield LabelRow(where, _path(task.get("data", task), where), next(iter(labels), ""))


class _MisshapenError(Exception):
    """A field of a task has another type than in Label Studio's exports."""


def _list_of(kind: type[T], value: Any, what: str) -> list[T]:
    """The value as a list whose items have one type; None is an empty list."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise _MisshapenError(f"{what} is not a list of {'texts' if kind is str else 'objects'}")
    return value


def _annotated(task: dict[str, Any]) -> Iterator[str]:
    """The labels in the annotations of a task, except cancelled ones."""
    for annotation in _list_of(dict, task["annotations"], "annotations"):
        if not annotation.get("was_cancelled"):
            for result in _list_of(dict, annotation.get("result"), "the result of an annotation"):
                yield from _choices(result.get("value"))
                if result.get("from_name") == TYPED:
                    yield from _typed(result.get("value"))


def _minimal(task: dict[str, Any]) -> list[str]:
    """The labels of a task in JSON-MIN, under the name in our interface or in Label Studio's own template."""
    value = task.get(CONTROL, task.get("choice"))
    chosen = _choices(value if isinstance(value, dict) else {"choices": value})
    return [*chosen, *_typed({"text": task.get(TYPED)})]


def _choices(value: Any) -> list[str]:
    """The chosen classes in the value of a result; other kinds of results have none."""
    choices = value.get("choices") if isinstance(value, dict) else None
    return [choices] if isinstance(choices, str) else _list_of(str, choices, "the choice of a class")


def _typed(value: Any) -> list[str]:
    """The class that was typed in the value of a result."""
    text = value.get("text") if isinstance(value, dict) else None
    lines = [text] if isinstance(text, str) else _list_of(str, text, "the typed name of a class")
    return [line.strip() for line in lines if line.strip()]


def _path(fields: Any, where: str) -> str:
    """The `path` that npmatch wrote; for other tasks, the path of the local file in the address."""
    named = fields if isinstance(fields, dict) else {}
    path, address = named.get("path"), named.get("image")
    if not isinstance(path, str) and isinstance(address, str) and address.startswith(LOCAL_FILES):
        path = unquote(address.removeprefix(LOCAL_FILES), errors="surrogateescape")
    if not isinstance(path, str):
        raise NPMatchError(f"{where}: names no file; import the tasks that npmatch suggest --label-studio writes")
    if "\0" in path or not _is_encodable(path):
        raise NPMatchError(f"{where}: the path {path!a} cannot be that of a file; correct it")
    return path


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True
