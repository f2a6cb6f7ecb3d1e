"""Runs the commands of the tutorial and writes their output below each of them.

    python scripts/run_tutorial.py DIR

DIR must not exist; the commands run there, in order, with `npmatch` and `python` of this environment. Each ```sh block
of docs/tutorial.md is followed by a ```text block, which is replaced; `<!-- first N lines -->` before it keeps N lines.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorial.md"
STEP = re.compile(
    r"(?P<command>^```sh\n(?P<script>.*?)^```\n\n)(?P<limit><!-- first (?P<lines>\d+) lines -->\n)?^```text\n.*?^```\n",
    re.DOTALL | re.MULTILINE,
)


def run_tutorial(page: str, folder: Path) -> str:
    """Runs every command of the page and returns the page with the new outputs."""
    return STEP.sub(lambda step: step["command"] + (step["limit"] or "") + output(step, folder), page)


def output(step: re.Match[str], folder: Path) -> str:
    """Runs one command and returns its output as a ```text block."""
    started = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", step["script"]],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(
        f"{time.monotonic() - started:6.1f} s, exit code {done.returncode}: {step['script'].splitlines()[0]}",
        flush=True,
    )
    if done.returncode not in (0, 1) or "\nnpmatch: " in "\n" + done.stdout:  # 1: some files were skipped
        raise RuntimeError(done.stdout)
    lines = [line.rstrip().replace(str(folder), "/home/me") for line in done.stdout.splitlines()]
    if step["lines"] and len(lines) > int(step["lines"]):
        lines = [*lines[: int(step["lines"])], "…"]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def environment() -> dict[str, str]:
    """Environment variables: this environment's commands first on the path, a terminal as wide as the page."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "COLUMNS": "88", "NPMATCH_HOME": str(ROOT)}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, help="Folder in which the commands run; it must not exist.")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True)
    TUTORIAL.write_text(run_tutorial(TUTORIAL.read_text(encoding="utf-8"), folder.resolve()), encoding="utf-8")


if __name__ == "__main__":
    main()
