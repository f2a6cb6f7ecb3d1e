"""Import a user's own Python code by name, `package.module:name`, and refuse code that nobody here asked for.

A name typed on the command line or passed to a function is imported. A name in the files of a run may come from a
stranger: it is imported only if the user typed the same name in this process, or trusts the run (--trust-code).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from npmatch.errors import NPMatchError

# Names of this form that are npmatch's own code, always trusted; models saved by version 0.1.0 hold the old name.
MOVED = {"npmatch.array_data:DenseNetwork": "npmatch.estimator.arrays:DenseNetwork"}
OWN_CODE = frozenset({*MOVED, *MOVED.values()})

_trusted: ContextVar[bool] = ContextVar("trusted", default=False)
_typed: set[str] = set()


def import_name(name: str, kind: str) -> Any:
    """Import and return the object named 'package.module:name'; `kind` says in errors what it is for."""
    module_name, _, attribute = MOVED.get(name, name).partition(":")
    if os.getcwd() not in sys.path:  # console scripts do not search the current folder
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise NPMatchError(f"{kind} '{name}': no module named '{error.name}'") from error
    except (AttributeError, ValueError) as error:
        raise NPMatchError(f"{kind} '{name}': module '{module_name}' has no '{attribute}'") from error
    remember_typed([name])
    return found


def remember_typed(names: Iterable[object]) -> None:
    """Trust names a user has typed before they are imported: on --resume, a run's files are read first."""
    _typed.update(name for name in names if isinstance(name, str))


@contextmanager
def trusting(wanted: bool) -> Iterator[None]:
    """Inside, import the code that a run's files name, if `wanted` or if it was wanted outside."""
    token = _trusted.set(wanted or _trusted.get())
    try:
        yield
    finally:
        _trusted.reset(token)


def is_trusting() -> bool:
    """Whether the code that a run's files name is imported here."""
    return _trusted.get()


def refuse_code(names: Iterable[object], file: Path) -> None:
    """Raise an error if `file` names Python code that the user has neither typed nor trusted."""
    for name in names:
        if not isinstance(name, str) or ":" not in name or name.startswith("timm:"):
            continue
        if name not in OWN_CODE | _typed and not _trusted.get():
            raise NPMatchError(
                f"{file}: would run the Python code '{name}'; if you trust it, add --trust-code (in Python: "
                "trust_code=True)"
            )
