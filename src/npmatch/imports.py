"""Names on the command line that stand for a user's own Python: `package.module:name`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from npmatch.types import NPMatchError


def import_name(name: str, kind: str) -> Any:
    """The object behind 'package.module:name'; `kind` is the word used in errors."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # console scripts do not look into the current folder by themselves
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise NPMatchError(f"{kind} '{name}': no module named '{error.name}'") from error
    except AttributeError as error:
        raise NPMatchError(f"{kind} '{name}': module '{module_name}' has no '{attribute}'") from error
