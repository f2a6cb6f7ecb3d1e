"""The command line of the benchmarks: the list, one-line errors, and the two ways to start each."""

import json
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

import benchmarks
import npmatch.cli
from benchmarks.__main__ import BENCHMARKS, app
from benchmarks.command_line import as_app, run, run_app

ROOT = Path(__file__).parents[2]
NAMES = [module.__name__.removeprefix("benchmarks.") for module in BENCHMARKS]


def start(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("program", [npmatch.cli.main, lambda words: run_app(app, "python -m benchmarks", words)])
def test_no_verb_prints_the_help(program, capsys):
    assert program([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(("Usage: npmatch", "Usage: python -m benchmarks"))
    assert "\n\nCommands:\n" in err


def test_every_benchmark_is_listed_with_one_whole_line(capsys):
    assert run_app(app, "python -m benchmarks", ["--help"]) == 0
    lines = capsys.readouterr().out.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)


def test_every_module_with_a_command_line_is_listed():
    found = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    runnable = [name for name in found if name != "__main__" and hasattr(import_module(f"benchmarks.{name}"), "main")]
    assert sorted(runnable) == sorted([*NAMES, "demo"])


def test_a_module_is_started_by_its_own_name_or_through_the_list():
    alone, listed = start("benchmarks.scaling", "--ranks", "2"), start("benchmarks", "scaling", "--ranks", "2")
    problem = "--ranks 2: give two numbers or more to compare, such as 1,2"
    assert (alone.returncode, alone.stdout, alone.stderr) == (2, "", f"python -m benchmarks.scaling: {problem}\n")
    assert (listed.returncode, listed.stdout, listed.stderr) == (2, "", f"python -m benchmarks: {problem}\n")


@pytest.mark.parametrize("module", BENCHMARKS, ids=NAMES)
def test_every_argument_and_option_has_a_help(module, capsys):
    command = typer.main.get_command(as_app(module.main))
    helps = {parameter.name: parameter.help for parameter in command.params}
    assert all(helps.values()), helps
    assert {"device", "as_json"} <= helps.keys()
    assert run(module.main, ["--help"]) == 0
    assert f"python -m benchmarks.{module.__name__.rpartition('.')[2]} " in capsys.readouterr().out


def test_torchrun_is_refused(monkeypatch, capsys):
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert run(BENCHMARKS[0].main, []) == 2
    assert capsys.readouterr().err == "python -m benchmarks.step: torchrun is not for benchmarks; leave it out\n"


def test_npmatch_names_where_the_benchmarks_are_without_torch():
    program = (
        "import json, sys\nsys.modules['torch'] = None\nfrom npmatch.cli import main\n"
        "codes = [main(['bench', 'step', '--json']), main(['--help'])]\nprint(json.dumps(codes))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *lines, codes = done.stdout.splitlines()
    assert json.loads(codes) == [2, 0]
    assert done.stderr.count("\n") == 1
    assert "python -m benchmarks" in done.stderr
    assert not any("bench" in line for line in lines)
