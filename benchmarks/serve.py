"""The served page under load: is every request answered or refused by the rules, and does memory stay flat?"""

from __future__ import annotations

import http.client
import io
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.result import BenchResult, Column
from npmatch.errors import NPMatchError

STRETCHES = 10  # of the requests; memory is read after each
FLOOD = 128  # clients at once, more than the page has places for
START_SECONDS = 120.0
COLUMNS = [
    Column("what", "requests"),
    Column("clients", "clients"),
    Column("answered", "answered"),
    Column("refused", "refused (503)"),
    Column("failed", "failed"),
    Column("median", "median, ms", "{:.0f}"),
    Column("p99", "99 %, ms", "{:.0f}"),
    Column("megabytes", "server, MB", "{:.0f}"),
]


@dataclass(frozen=True)
class Server:
    """A page in a process of its own."""

    port: int
    pid: int

    def megabytes(self) -> float:
        """Resident memory."""
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(self.pid)], capture_output=True, text=True, check=True)
        return int(shown.stdout) / 1024


def bench_serve(
    run: Path | None,
    requests: int = 10_000,
    clients: int = 16,
    device: str | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> BenchResult:
    """Predictions asked of a page by `clients` at a time, then by many more than it has places for."""
    if run is not None and not (run / "config.json").is_file():
        raise NPMatchError(f"{run}: no such run, or not a finished one")
    pictures = make_pictures()
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="npmatch-") as scratch, serving(run or small_run(Path(scratch)), device) as server:
        ask_all(server, pictures, max(clients, requests // STRETCHES), clients)  # warms up: libraries, caches, arenas
        before = server.megabytes()
        for done in range(0, requests, -(-requests // STRETCHES)):
            count = min(-(-requests // STRETCHES), requests - done)
            what = f"{done + 1}–{done + count}"
            rows.append({"what": what, **ask_all(server, pictures, count, clients), "megabytes": server.megabytes()})
            advance(count)
        rows.append({"what": "flood", **ask_all(server, pictures, 4 * FLOOD, FLOOD), "megabytes": server.megabytes()})
    return BenchResult(
        "serve",
        f"{requests} predictions of {clients} clients, then a flood of {FLOOD}",
        COLUMNS,
        rows,
        {"memory: after / before": rows[-2]["megabytes"] / before},
        [f"Server memory after warm-up: {before:.0f} MB. Refused requests got 503 with Retry-After."],
        device or "cpu",
    )


@contextmanager
def serving(run: Path, device: str | None) -> Iterator[Server]:
    """`npmatch serve` on a free port, ready to predict."""
    words = [sys.executable, "-u", "-m", "npmatch", "serve", str(run), "--port", "0"]
    words += ["--device", device] if device else []
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        if not found:
            problem = process.stderr.read() if process.stderr else ""
            raise NPMatchError(problem.strip().removeprefix("npmatch: ") or f"{run}: the page did not start")
        server = Server(int(found[1]), process.pid)
        wait_for_images(server)
        yield server
    finally:
        process.terminate()
        process.communicate(timeout=30)


def wait_for_images(server: Server) -> None:
    """Until the model has looked at all unlabelled images: memory grows until then, as it should."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        status = json.loads(ask(server, "GET", "/api/status")[1])
        if status["problem"]:
            raise NPMatchError(status["problem"])
        counts = status["counts"]
        if status["has_model"] and counts and counts["looked_at"] == counts["images"]:
            return
        time.sleep(0.2)
    raise NPMatchError(f"the page was not ready after {START_SECONDS:g} seconds; give a run with fewer images")


def ask_all(server: Server, pictures: Sequence[bytes], count: int, clients: int) -> dict[str, float]:
    """`count` predictions, `clients` at a time: how many were answered, refused or failed, and how quickly."""

    def one(number: int) -> tuple[int, float]:
        start = time.perf_counter()
        try:
            status, _ = ask(server, "POST", "/api/predict", pictures[number % len(pictures)])
        except (OSError, http.client.HTTPException):
            status = 0
        return status, 1000 * (time.perf_counter() - start)

    with ThreadPoolExecutor(clients) as pool:
        results = list(pool.map(one, range(count)))
    kinds = Counter(status for status, _ in results)
    times = [milliseconds for status, milliseconds in results if status == 200] or [float("nan")]
    return {
        "clients": clients,
        "answered": kinds[200],
        "refused": kinds[503],
        "failed": count - kinds[200] - kinds[503],
        "median": float(np.median(times)),
        "p99": float(np.quantile(times, 0.99)),
    }


def ask(server: Server, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def make_pictures(count: int = 64, side: int = 96) -> list[bytes]:
    """PNG files of noise, each another one."""
    from PIL import Image

    draws = np.random.default_rng(0)
    files = []
    for _ in range(count):
        buffer = io.BytesIO()
        Image.fromarray(draws.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(buffer, "PNG")
        files.append(buffer.getvalue())
    return files


def small_run(folder: Path) -> Path:
    """Digits, hardly trained: what is measured is the page."""
    from npmatch.runs.fit import fit

    return fit("digits-40", out=folder / "run", quiet=True, device="cpu", overrides={"training.iterations": 10}).folder
