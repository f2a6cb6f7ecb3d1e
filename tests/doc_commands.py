"""The commands in the documentation, so that tests can parse and run them."""

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from benchmarks.command_line import as_app
from npmatch.cli import app

ROOT = Path(__file__).parents[1]
BENCHMARKS = r"python -m benchmarks\.\w+"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# So small that the commands of a page run in seconds; a name stands for the words added to that verb's command.
SMALL = ["training.iterations=4", "training.batch=4", "training.unlabeled_ratio=1", "backbone.width=4"]
FOLDER = [*SMALL, "data.image_size=16"]
ANYWHERE = {"--help", "--trust-code"}  # words that every verb takes


def blocks(page: Path, languages: tuple[str, ...] = ("", "sh")) -> list[str]:
    """The fenced blocks of a page that are in these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [content for language, content in found if language in languages]


def commands(page: Path, program: str = r"npmatch \S") -> list[str]:
    """Lines of these blocks that call a program, without comments; a backslash carries a line on."""
    lines = "".join(blocks(page)).replace("\\\n", " ").splitlines()
    return [line.split(" #")[0].strip() for line in lines if re.match(program, line)]


def commands_in_sentences(page: Path) -> list[str]:
    """Code spans of a page's text that call npmatch or a benchmark, each on one line."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]
    return [span for span in spans if re.match(rf"npmatch \S|{BENCHMARKS}", span)]


def is_synopsis(command: str) -> bool:
    """Whether it shows choices and is not to be typed as it stands."""
    return bool(re.search(r"[\[\]|…]", command)) and "npmatch[" not in command


def find_verb(command: str) -> tuple[Any, list[str]]:
    """The function behind a command line, and the words after it."""
    words = [word for word in shlex.split(command) if word not in ANYWHERE]
    if words[0] == "python":
        return typer.main.get_command(as_app(import_module(words[2]).main)), words[3:]
    verb, words = typer.main.get_command(app), words[1:]
    while hasattr(verb, "commands"):
        assert words[0] in verb.commands, f"{command}: there is no {words[0]}"
        verb = verb.commands[words.pop(0)]
    return verb, words


def options(verb: Any) -> set[str]:
    """What it takes: --data, -o, …"""
    return {option for parameter in verb.params for option in (*parameter.opts, *parameter.secondary_opts)} | ANYWHERE


def small(words: list[str]) -> list[str]:
    """A command, less its first word, with the same meaning and less work."""
    verb, words = words[0], list(words)
    if verb in ("compare", "sweep"):
        swaps = {"--seeds": "1", "--jobs": "1", "--algorithms": "supervised,fixmatch"}
        for option, value in swaps.items():
            if option in words:
                words[words.index(option) + 1] = value
        return [*words, *SMALL]
    if verb == "train":
        words += ["training.iterations=4"] if "--resume-from" in words else FOLDER if "--data" in words else SMALL
    return words
