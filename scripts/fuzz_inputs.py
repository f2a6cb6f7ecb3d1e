"""Fuzz test of every input but images: settings, model cards, tables of labels and data, splits, exports, requests.

    python scripts/fuzz_inputs.py --cases 20000

Each case mutates a valid input and reads it as npmatch would. It must be accepted, or refused with an error in one
line, within a time limit; the page must answer without a server error. At the end, memory must not have grown by more
than a gibibyte, and the images and the run must be as they were. Anything else is printed with the number of the case,
which `--only` repeats, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fastapi.testclient import TestClient
from PIL import Image

import npmatch
from npmatch.config.resolve import resolve_config
from npmatch.config.tree import make_config
from npmatch.data import Split
from npmatch.data.sources.tables import list_csv
from npmatch.errors import NPMatchError
from npmatch.labelling.files import read_label_file, take_labels
from npmatch.runs.folder import RunFolder
from npmatch.runs.open import open_run_data
from npmatch.web.access import Access
from npmatch.web.app import make_app
from npmatch.web.site import Site

LIMIT = 5  # seconds allowed for one case
MAX_MEMORY = 1024  # MiB above the start
LONG = 2000
NUMBERS = [0, -1, 1, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf")]
WORDS = [
    "",
    " ",
    "x",
    "cat",
    "0",
    "-1",
    "1e999",
    "nan",
    "none",
    "é" * LONG,
    "9" * LONG,
    "e\u0301",
    "a,b",
    '"',
    "[" * 100,
]
HOSTILE = ["\x1b[2J", "\x00", "\ud800", "../../etc/passwd", "/dev/zero", "os:system", "timm:resnet50", "=1+1"]
TREES = [[], {}, [[]], [None], [1] * LONG, {"a": {"b": {"c": 1}}}, {"name": "cnn"}, ["cat", "cat"], [0.5, float("nan")]]
ODD: list[Any] = [None, True, False, *NUMBERS, *WORDS, *HOSTILE, *TREES]


def mutate_bytes(content: bytes, draws: random.Random) -> bytes:
    """The content with pieces removed, repeated, overwritten or put in."""
    mutated = bytearray(content)
    for _ in range(draws.choice([1, 1, 2, 4])):
        start = draws.randrange(len(mutated) + 1)
        piece = mutated[start : start + draws.randint(1, 40)]
        odd = str(draws.choice(ODD)).encode("utf-8", "surrogatepass")[:LONG]
        mutated[start : start + draws.choice([0, len(piece)])] = draws.choice(
            [
                b"",
                bytes(piece) * draws.choice([2, 100]),
                odd,
                draws.randbytes(3),
                b"\n",
                b'"',
                b"\xff\xfe",
                b"*a &a [",
                b"\t",
            ]
        )
    return bytes(mutated)


def mutate_tree(tree: Any, draws: random.Random) -> Any:
    """A tree of JSON values with a few of them replaced, removed, moved or repeated."""
    tree = copy.deepcopy(tree)
    for _ in range(draws.choice([1, 1, 1, 2, 4])):
        holders = [node for node in _nodes(tree) if isinstance(node, dict | list) and node]
        if not holders:
            return draws.choice(ODD)
        holder = draws.choice(holders)
        key = draws.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        change = draws.randrange(5)
        if change == 0:
            del holder[key]
        elif change == 1 and isinstance(holder, list):
            holder.extend(copy.deepcopy(holder) * draws.choice([1, 50]))
        elif change == 2 and isinstance(holder, dict):
            holder[str(draws.choice(ODD))] = holder[key]
        else:
            holder[key] = copy.deepcopy(draws.choice([*ODD, draws.choice(holders)]))
    return tree


def _nodes(tree: Any) -> Iterator[Any]:
    yield tree
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    for value in list(values):
        yield from _nodes(value)


def mutate_file(content: bytes, draws: random.Random) -> bytes:
    """The content of a file, mutated as a tree of values where it is JSON, or as bytes."""
    if draws.random() < 0.3:
        return mutate_bytes(content, draws)
    try:
        return json.dumps(mutate_tree(json.loads(content), draws)).encode()
    except (ValueError, RecursionError):
        return mutate_bytes(content, draws)


class Inputs:
    """Valid inputs of every kind, made from a small run, and how each kind is read."""

    def __init__(self, place: Path) -> None:
        """Trains a run in the folder `place`."""
        self.place, self.photos, self.run = place, place / "photos", place / "run"
        save_photos(self.photos)
        settings = {"training.iterations": 4, "training.batch": 4, "backbone.width": 4, "data.image_size": 8}
        npmatch.fit(data=self.photos, out=self.run, quiet=True, device="cpu", overrides=settings)
        self.opened = open_run_data(self.run)
        self.client = TestClient(make_app(Site(self.run, device="cpu"), Access()), base_url="http://127.0.0.1:8000")
        self.keys = sorted(make_config({}).flat())
        self.kinds: dict[str, Callable[[random.Random], None]] = {
            "settings": self.settings,
            "settings in a file": self.settings_file,
            "a model": lambda draws: self.of_run(
                draws, "config.json", lambda run: npmatch.load(run, "cpu").predict(self.images)
            ),
            "a split": lambda draws: self.of_run(
                draws, "split.json", lambda run: Split.load(run / "split.json", self.opened.dataset)
            ),
            "a log": lambda draws: self.of_run(draws, "metrics.jsonl", lambda run: RunFolder(run).final_scores()),
            "a description of data": lambda draws: self.of_run(
                draws, "data.json", lambda run: RunFolder(run).read_data()
            ),
            "a configuration": lambda draws: self.of_run(
                draws, "config.yaml", lambda run: RunFolder(run).read_config()
            ),
            "labels": self.labels,
            "an export": self.export,
            "a table of images": self.table,
            "a request": self.request,
        }
        self.images = [str(path) for path in sorted(self.photos.rglob("*.png"))[:2]]

    def digests(self) -> dict[str, str]:
        """Name → hash of every file of the run and of its images."""
        return digest_of(self.run) | digest_of(self.photos)

    def _forget_labels(self) -> None:
        """Removes the label book that a case has written, with its backup: no case had one before."""
        for file in self.run.glob("*labels*.csv"):
            file.unlink()

    def settings(self, draws: random.Random) -> None:
        """Words of a command line."""
        words = [f"{draws.choice(self.keys)}={draws.choice(ODD)}" for _ in range(draws.randint(1, 3))]
        resolve_config("digits-40", overrides=words, device="cpu")

    def settings_file(self, draws: random.Random) -> None:
        """A file of settings."""
        tree = mutate_tree(make_config({}).nested(), draws)
        content = yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "replace")
        path = self.place / "settings.yaml"
        path.write_bytes(mutate_bytes(content, draws) if draws.random() < 0.5 else content)
        resolve_config("digits-40", config_file=path, device="cpu")

    def of_run(self, draws: random.Random, name: str, read: Callable[[Path], object]) -> None:
        """One file of a copy of the run."""
        folder = self.place / "copy"
        folder.mkdir(exist_ok=True)
        for file in self.run.iterdir():
            if file.is_file() and not (folder / file.name).exists():
                shutil.copy(file, folder)
        (folder / name).write_bytes(mutate_file((self.run / name).read_bytes(), draws))
        try:
            read(folder)
        finally:
            shutil.copy(self.run / name, folder)

    def labels(self, draws: random.Random) -> None:
        """A table of labels."""
        rows = [f"unlabeled/{i}.png,{draws.choice(['cat', 'dog', ''])}" for i in range(6)]
        self._take("labels.csv", mutate_bytes("\n".join(["path,label", *rows]).encode(), draws))

    def export(self, draws: random.Random) -> None:
        """An export of Label Studio."""
        choice = {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": ["cat"]}}
        full = [
            {"data": {"path": f"unlabeled/{i}.png"}, "annotations": [{"was_cancelled": False, "result": [choice]}]}
            for i in range(3)
        ]
        minimal = [{"path": f"unlabeled/{i}.png", "label": "dog"} for i in range(3)]
        self._take("export.json", mutate_file(json.dumps(draws.choice([full, minimal])).encode(), draws))

    def _take(self, name: str, content: bytes) -> None:
        path = self.place / name
        path.write_bytes(content)
        try:
            take_labels(self.opened, read_label_file(path))
        finally:
            self._forget_labels()

    def table(self, draws: random.Random) -> None:
        """A CSV of images and labels."""
        rows = [
            f"photos/{part},{label}" for part, label in (("labeled/cat/0.png", "cat"), ("labeled/dog/0.png", "dog"))
        ]
        path = self.place / "images.csv"
        path.write_bytes(mutate_bytes("\n".join(["path,label", *rows, "photos/unlabeled/0.png,"]).encode(), draws))
        list_csv(path).dataset("csv", 8)

    def request(self, draws: random.Random) -> None:
        """A request to the page; a server error is raised."""
        paths = [
            "/",
            "/api/run",
            "/api/status",
            "/api/images",
            "/api/images/0",
            "/api/labels",
            "/api/undo",
            "/api/predict",
        ]
        paths += ["/api/labels.csv", "/api/figures", "/figures/x.svg", "/static/main.js", "/static/../app.py"]
        text = quote_odd(draws)
        path = draws.choice(paths) + draws.choice(["", f"/{text}", f"?start={text}", f"?view={text}", f"?token={text}"])
        headers = {}
        for name in ("origin", "host", "cookie", "authorization", "sec-fetch-site", "content-type", "range"):
            if draws.random() < 0.15:
                odd = draws.choice(["http://[::1", "[::1", "null", "Bearer ", "npmatch-8000=x", "bytes=9-1", text])
                headers[name] = odd.encode("latin-1", "replace").replace(b"\n", b"").replace(b"\x00", b"")
        body = mutate_file(b'{"image": 3, "label": 0, "skip": false, "who": "me", "seen": null}', draws)
        answer = self.client.request(
            draws.choice(["GET", "POST", "PUT", "HEAD", "DELETE"]), path, content=body, headers=headers
        )
        if answer.status_code >= 500 and answer.status_code != 503:
            raise RuntimeError(f"{path}: {answer.status_code}")
        self._forget_labels()


def quote_odd(draws: random.Random) -> str:
    """An odd value as part of an address."""
    from urllib.parse import quote

    return quote(str(draws.choice(ODD)).encode("utf-8", "surrogatepass")[:200])


def save_photos(root: Path) -> None:
    """A folder of few images of two classes."""
    draws = np.random.default_rng(0)
    for name in (
        *(f"labeled/{c}/{i}" for c in ("cat", "dog") for i in range(4)),
        *(f"unlabeled/{i}" for i in range(6)),
    ):
        path = root / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)


def digest_of(folder: Path) -> dict[str, str]:
    """Name → hash of every file below a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class TooSlowError(Exception):
    """A case took longer than the limit."""


def out_of_time(signum: int, frame: object) -> None:
    """Signal handler of the alarm."""
    raise TooSlowError


def try_case(read: Callable[[random.Random], None], draws: random.Random, outcomes: Counter[str]) -> str | None:
    """Reads one input and counts the outcome; returns a line if it is not an allowed one."""
    signal.alarm(LIMIT)
    try:
        with contextlib.redirect_stderr(open(os.devnull, "w")):
            read(draws)
        outcomes["accepted"] += 1
    except NPMatchError as error:
        outcomes["refused in one line"] += 1
        return None if "\n" not in str(error) and len(str(error)) < 10_000 else f"says {str(error)[:200]}"
    except TooSlowError:
        return f"took over {LIMIT} s"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
    return None


def memory() -> float:
    """The largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Runs the cases and prints the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000, help="Number of mutated inputs.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the mutations.")
    parser.add_argument("--only", type=int, default=None, help="Number of the one case to run, with its traceback.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="Stop after this time.")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, out_of_time)
    outcomes, kinds, problems = Counter[str](), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="npmatch-fuzz-") as place:
        inputs = Inputs(Path(place))
        before, start, started = inputs.digests(), memory(), time.monotonic()
        slowest = (0.0, "none")
        with inputs.client:
            for number in range(options.cases) if options.only is None else [options.only]:
                if time.monotonic() - started > options.seconds:
                    break
                draws = random.Random(f"{options.seed}-{number}")
                kind = draws.choice(sorted(inputs.kinds))
                kinds[kind] += 1
                begun = time.monotonic()
                if options.only is not None:
                    inputs.kinds[kind](draws)
                elif problem := try_case(inputs.kinds[kind], draws, outcomes):
                    problems.append(f"case {number} ({kind}): {problem}")
                    print(problems[-1], flush=True)
                slowest = max(slowest, (time.monotonic() - begun, f"case {number} ({kind})"))
        if inputs.digests() != before:
            problems.append("files of the user were changed")
    grown = memory() - start
    if grown > MAX_MEMORY:
        problems.append(f"memory grew by {grown:.0f} MiB")
    print(f"{kinds.total()} cases, seed {options.seed}: {dict(kinds)}")
    spent = time.monotonic() - started
    print(f"{dict(outcomes)}; slowest {slowest[0]:.2f} s, {slowest[1]}; {spent:.0f} s in all; {grown:.0f} MiB more")
    print(f"{len(problems)} problems" if problems else "no crash, no hang, no traceback")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
