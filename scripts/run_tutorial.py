"""Runs the tutorial's commands and writes what they really printed under each of them.

    python scripts/run_tutorial.py DIR

DIR must be new; the commands run there, in order, with `npmatch` and `python` of this environment. A ```sh block of
docs/tutorial.md is followed by a ```text block, which is replaced; `<!-- first N lines -->` before it keeps N lines.
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
    """The page with every output as it was now."""
    return STEP.sub(lambda step: step["command"] + (step["limit"] or "") + output(step, folder), page)


def output(step: re.Match[str], folder: Path) -> str:
    """What a step printed, as a block."""
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
    if done.returncode not in (0, 1) or "\nnpmatch: " in "\n" + done.stdout:  # 1: done, but some files were left out
        raise RuntimeError(done.stdout)
    lines = [line.rstrip().replace(str(folder), "/home/me") for line in done.stdout.splitlines()]
    if step["lines"] and len(lines) > int(step["lines"]):
        lines = [*lines[: int(step["lines"])], "…"]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def environment() -> dict[str, str]:
    """This environment's commands first, on a terminal of the page's width."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "COLUMNS": "88", "NPMATCH_HOME": str(ROOT)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, help="New folder in which the commands run.")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True)
    TUTORIAL.write_text(run_tutorial(TUTORIAL.read_text(encoding="utf-8"), folder.resolve()), encoding="utf-8")


if __name__ == "__main__":
    main()
