"""The README is true: its algorithm keeps the contract, its commands run, and those of the other pages exist."""

import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import npmatch
from doc_commands import (
    BENCHMARKS,
    FOLDER,
    PAGES,
    ROOT,
    blocks,
    commands,
    commands_in_sentences,
    find_verb,
    is_synopsis,
    options,
    small,
)
from few_photos import save_photo, save_photos
from npmatch.cli import main

README = ROOT / "README.md"
WATCHED = {"serve"}  # stays until it is stopped: parsed, and run by tests of its own


def python_block(words: str) -> str:
    (source,) = (block for block in blocks(README, ("python",)) if words in block)
    return source


def test_the_readmes_algorithm_passes_the_battery():
    source = python_block("npmatch.Algorithm")
    assert source.count("\n") <= 30
    names: dict[str, object] = {"__name__": "mine"}
    exec(source, names)
    algorithm = names["PseudoLabel"]
    assert isinstance(algorithm, type)
    assert npmatch.check_algorithm(algorithm) is None


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_knows_the_commands_of_the_readme_and_ci_runs_its_tests():
    typed = [line.split(" #")[0].strip() for line in commands(README, "make ")]
    assert typed == ["make demo", "make test"]
    for command, module in zip(typed, ("benchmarks.demo", "pytest"), strict=True):
        done = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert re.search(rf"^\S+python -m {module}$", done.stdout, re.M), done.stdout
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def option_words(command: str) -> set[str]:
    """The options that a command names."""
    words = command.partition(" -m ")[2] or command  # less those of python
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", words))


@pytest.mark.parametrize(
    ("page", "command"),
    [(page.name, line) for page in PAGES for line in (*commands(page), *commands(page, BENCHMARKS))],
)
def test_every_command_in_the_docs_exists(page, command):
    verb, words = find_verb(command)
    assert option_words(command) <= options(verb), f"{page}: {command}"
    if not is_synopsis(command):
        verb.make_context(verb.name, words)  # raises where a word is missing, unknown or of another type


@pytest.mark.parametrize(
    ("page", "command"), [(page.name, line) for page in PAGES for line in commands_in_sentences(page)]
)
def test_every_command_in_a_sentence_has_a_verb_and_options_that_exist(page, command):
    verb, _ = find_verb(command)
    assert option_words(command) <= options(verb), f"{page}: {command}"


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """The README's folders, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    save_photos(Path("photos"), (24, 20), classes=("cat", "dog"), unlabeled=12, test=3)
    for i in range(3):
        save_photo(Path("new") / f"{i}.jpg", seed=i, size=(24, 20 + i))
    return tmp_path


def fill_in(todo: Path) -> None:
    """What a person does between suggest and label."""
    with open(todo, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with open(todo, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows({**row, "label": ["cat", "dog"][i % 2]} for i, row in enumerate(rows))


def run(command: str) -> None:
    words = small(shlex.split(command)[1:])
    if words[0] in WATCHED or is_synopsis(command):
        return
    assert main(words) == 0, f"{command}, run as {words}"
    if words[0] == "suggest" and "-o" in words:
        fill_in(Path(words[words.index("-o") + 1]))


def readme_commands(verbs: set[str], others: bool = False) -> list[str]:
    return [line for line in commands(README) if (line.split()[1] in verbs) != others]


def test_the_readmes_commands_run(photos, capsys):
    """All but those that take longer, in the README's order, each on what the ones before left."""
    Path("mine.py").write_text(python_block("npmatch.Algorithm"))
    done = readme_commands({"compare", "sweep", "export"}, others=True)
    for command in done:
        run(command)
    assert Path("new.csv").exists()
    assert len(done) >= 7


@pytest.mark.slow
def test_the_readmes_longer_commands_run(photos, capsys):
    for command in [readme_commands({"train"})[0], *readme_commands({"compare", "sweep", "export"})]:
        run(command)


def test_the_readmes_python_runs(photos, monkeypatch):
    fit = npmatch.fit
    settings = {key: value for key, value in (word.split("=") for word in FOLDER)}
    monkeypatch.setattr(npmatch, "fit", lambda **words: fit(**words, overrides=settings, quiet=True))
    names: dict[str, object] = {}
    exec(python_block("npmatch.fit"), names)
    prediction = names["prediction"]
    assert isinstance(prediction, npmatch.Prediction)
    assert prediction.probs.shape == (2, 2)
