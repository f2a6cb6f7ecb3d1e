"""The README's own algorithm keeps the contract, in no more lines than promised."""

import re
from pathlib import Path

import npmatch

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_readmes_algorithm_passes_the_battery():
    (source,) = (
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "npmatch.Algorithm" in block
    )
    assert source.count("\n") <= 30
    names: dict[str, object] = {"__name__": "mine"}
    exec(source, names)
    algorithm = names["PseudoLabel"]
    assert isinstance(algorithm, type)
    assert npmatch.check_algorithm(algorithm) is None


def test_the_two_commands_exist():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    assert {"demo:", "test:"} <= {line.split(" ")[0] for line in makefile.splitlines()}
    ci = (Path(__file__).parents[1] / ".ci" / "run").read_text(encoding="utf-8")
    assert "make test" in ci
    assert "make test" in README
