"""Names that stand for a user's own Python: `package.module:name`.

Who types such a name, on a command line or in a call, means it. One that stands in the files of a run may be a
stranger's, and is followed only where it has been typed in this process before, or with the user's consent.
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

# Ours, under a name of that form; models saved by version 0.1.0 have the first.
MOVED = {"npmatch.array_data:DenseNetwork": "npmatch.estimator.arrays:DenseNetwork"}
OWN_CODE = frozenset({*MOVED, *MOVED.values()})

_consent: ContextVar[bool] = ContextVar("consent", default=False)
_typed: set[str] = set()


def import_name(name: str, kind: str) -> Any:
    """The object behind 'package.module:name'; `kind` is the word used in errors."""
    module_name, _, attribute = MOVED.get(name, name).partition(":")
    if os.getcwd() not in sys.path:  # console scripts do not look into the current folder by themselves
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
    """Takes in what a user has typed, before it is imported: a run's files are often read first, as on --resume."""
    _typed.update(name for name in names if isinstance(name, str))


@contextmanager
def trusting(wanted: bool) -> Iterator[None]:
    """With `wanted`, names in the files of a run are followed inside."""
    token = _consent.set(wanted or _consent.get())
    try:
        yield
    finally:
        _consent.reset(token)


def refuse_code(names: Iterable[object], file: Path) -> None:
    """Stops where the names that `file` holds would run Python that nobody here has asked for."""
    for name in names:
        if not isinstance(name, str) or ":" not in name or name.startswith("timm:"):
            continue
        if name not in OWN_CODE | _typed and not _consent.get():
            raise NPMatchError(
                f"{file}: would run the Python code '{name}'; if you trust it, add --trust-code (in Python: "
                "trust_code=True)"
            )
