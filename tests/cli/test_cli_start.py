"""Help and misspelt commands answer at once: nothing heavy is imported before a verb has something to do."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import npmatch
from npmatch.cli import app
from npmatch.cli import predict as predict_verb
from npmatch.decide.abstention import CONFIDENCE
from npmatch.decide.novelty import QUANTILE

HEAVY = ("torch", "torchvision", "numpy", "scipy", "sklearn", "PIL", "matplotlib", "pyarrow", "pydantic", "timm")
VERBS = list(typer.main.get_command(app).commands)
# Runs each command line in turn and prints, for each, the exit code and the heavy modules imported so far.
PROBE = """
import contextlib, io, json, sys
from npmatch.cli import main
heavy, *lines = json.loads(sys.argv[1])
for words in lines:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    imported = [name for name in heavy if name in sys.modules]
    print(json.dumps([code, imported, out.getvalue(), err.getvalue()]))
"""
ALONE = {k: v for k, v in os.environ.items() if k not in ("TORCHELASTIC_RUN_ID", "RANK", "OMP_WAIT_POLICY")}


def probe(lines: list[list[str]]) -> list[tuple[int, list[str], str, str]]:
    command = [sys.executable, "-c", PROBE, json.dumps([HEAVY, *lines])]
    done = subprocess.run(command, env=ALONE, capture_output=True, text=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_help_of_every_verb_imports_nothing_heavy():
    lines = [["--help"], *([verb, "--help"] for verb in VERBS)]
    for words, (code, imported, out, err) in zip(lines, probe(lines), strict=True):
        assert (code, imported, err) == (0, [], ""), words
        assert out.startswith("Usage: npmatch"), words


def test_misspelt_words_import_nothing_heavy_and_suggest_the_nearest():
    lines = [[], ["trian"], ["train", "--sed", "1"], ["bench", "step", "--json"], *([v, "--jsn"] for v in VERBS)]
    found = probe(lines)
    for words, (code, imported, out, err) in zip(lines, found, strict=True):
        assert (code, imported, out) == (2, [], ""), words
        assert err.count("\n") == 1 or not words
    said = [err for *_, err in found]
    assert "'train'" in said[1]
    assert "--seed" in said[2]
    assert "python -m benchmarks" in said[3]
    assert "bench" not in said[0]  # the help does not list it
    assert all("--json" in err for err, verb in zip(said[4:], VERBS, strict=True) if verb != "serve")


def test_a_value_of_the_wrong_type_imports_no_torch():
    lines = [["train", "digits-40", "--seed", "x"], ["serve", "runs/x", "--port", "99999"], ["predict"]]
    for words, (code, imported, _, err) in zip(lines, probe(lines), strict=True):
        assert (code, set(imported) - {"pydantic"}) == (2, set()), words  # typer converts values with pydantic
        assert err.count("\n") == 1


def test_the_installed_command_imports_no_torch_for_help():
    command = [sys.executable, "-X", "importtime", "-m", "npmatch", "train", "--help"]
    done = subprocess.run(command, env=ALONE, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & set(HEAVY)


@pytest.mark.parametrize(("given", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_waiting_threads_do_not_spin_unless_the_user_says_so(given, expected):
    code = (
        "import os, sys, npmatch.cli as cli\n"
        "cli.main = lambda: print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)\n"
        "cli.console_script()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=ALONE | given, capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected} False\n"


def test_public_names_are_imported_on_first_use():
    code = (
        "import sys, npmatch\n"
        "assert set(npmatch.__all__) <= set(dir(npmatch))\n"
        "print(npmatch.__version__, npmatch.NPMatchError.__name__, 'torch' in sys.modules)\n"
        "from npmatch import fit\n"
        "print(fit is npmatch.fit, fit.__module__, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ALONE, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{npmatch.__version__} NPMatchError False", "True npmatch.runs.fit True"]


def test_type_checkers_see_the_names_that_are_imported_on_first_use():
    tree = ast.parse(Path(npmatch.__file__).read_text(encoding="utf-8"))
    shown = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("npmatch.")
        for alias in node.names
    }
    assert shown == npmatch._MODULES
    assert sorted(shown) == sorted(npmatch.__all__)
    assert all(getattr(npmatch, name) is not None for name in shown)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'npmatch' has no attribute 'fitt'"):
        _ = npmatch.fitt


def test_defaults_that_are_repeated_to_spare_an_import_are_equal():
    assert (predict_verb.CONFIDENCE, predict_verb.QUANTILE) == (CONFIDENCE, QUANTILE)
