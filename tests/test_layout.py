"""CONTRIBUTING.md's drawing of the house is true: every module is in it, and imports from above or from its left."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "npmatch"
OUTSIDE = {"__init__", "__main__"}  # the public names, and the way in
AS_A_USER = {("bench/faults.py", "cli")}  # starts whole commands, in processes of their own


def drawn_order() -> list[str]:
    """The names in the drawing, row by row; behind three spaces a row is prose."""
    drawing = re.search(r"^```\n(version .*?)^```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.S | re.M)
    assert drawing is not None
    return [name.rstrip("/") for row in drawing[1].splitlines() for name in re.split(r" {3,}", row)[0].split()]


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of this package that a module imports from, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "npmatch":
            _, _, rest = node.module.partition(".")
            found |= {rest.split(".")[0]} if rest else {alias.name for alias in node.names}
    return found - {"__version__"}


def test_every_module_is_in_the_drawing_once():
    assert sorted(drawn_order()) == sorted({room(path) for path in PACKAGE.rglob("*.py")} - OUTSIDE)


def test_imports_go_one_way():
    place = {name: number for number, name in enumerate(drawn_order())}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in PACKAGE.rglob("*.py")
        if room(path) not in OUTSIDE
        for other in imported_rooms(path)
        if place[other] > place[room(path)] and (path.relative_to(PACKAGE).as_posix(), other) not in AS_A_USER
    ]
    assert not wrong


def test_no_algorithm_and_no_loop_imports_an_algorithm():
    readers = [path for part in ("algorithms", "training") for path in (PACKAGE / part).glob("*.py")]
    for path in readers:
        if path.name != "__init__.py":
            named = re.findall(r"npmatch\.algorithms(?:\.(\w+))?", path.read_text(encoding="utf-8"))
            assert set(named) <= {"base"}, path
