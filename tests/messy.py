"""The messy photo folder of scripts/make_messy_folder.py, small enough for a test."""

import importlib.util
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "make_messy_folder.py"


def make_messy(root: Path, **options):
    spec = importlib.util.spec_from_file_location("make_messy_folder", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.make_messy_folder(root, **{"unlabeled": 60, **options})
