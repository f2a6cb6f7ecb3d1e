"""CONTRIBUTING.md's drawing of the layers is true: every package is in it, and imports point to its left or upward."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "npmatch"
OUTSIDE = {"__init__", "__main__"}  # the public names, and the way in
MODULES = sorted(PACKAGE.rglob("*.py"))


def drawn_layers() -> list[str]:
    """The names in the drawing in their order; behind three spaces a row is prose."""
    drawing = re.search(r"^```\n(errors .*?)^```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.S | re.M)
    assert drawing is not None
    return [name.rstrip("/") for row in drawing[1].splitlines() for name in re.split(r" {3,}", row)[0].split()]


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Dotted names of what a module imports of this package, below its top, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide the layer they come from"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.partition(".")[2] for name in names if name.split(".")[0] == "npmatch")


def wrong_imports(path: Path, text: str) -> list[str]:
    place = {name: number for number, name in enumerate(drawn_layers())}
    rooms = {name.split(".")[0] for name in imported_modules(ast.parse(text))}
    return sorted(other for other in rooms if place.get(other, len(place)) > place[room(path)])


def test_every_package_is_in_the_drawing_once():
    assert sorted(drawn_layers()) == sorted({room(path) for path in MODULES} - OUTSIDE)


def test_few_files_lie_beside_the_packages():
    assert len(list(PACKAGE.glob("*.py"))) <= 8


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_up(path):
    if room(path) not in OUTSIDE:
        assert wrong_imports(path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "import npmatch.cli",
        "import os, npmatch.cli.train as verb",
        "from npmatch import cli",
        "from npmatch.cli import main",
        "def f():\n    from npmatch.cli.train import train",
        "from npmatch import fit",  # the public names are for users: they import everything
        "import npmatch",
    ],
)
def test_the_check_sees_every_form_of_import(line):
    assert wrong_imports(PACKAGE / "training" / "loop.py", line)


def test_no_algorithm_and_no_loop_imports_an_algorithm():
    readers = [path for part in ("algorithms", "training") for path in (PACKAGE / part).glob("*.py")]
    for path in readers:
        if path.name != "__init__.py":
            named = re.findall(r"npmatch\.algorithms(?:\.(\w+))?", path.read_text(encoding="utf-8"))
            assert set(named) <= {"base", "label_embeddings"}, path
