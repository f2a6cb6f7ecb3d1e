"""Load test of `npmatch serve`: whether every request is answered or refused with 503, and memory stays flat."""

from __future__ import annotations

import http.client
import io
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.command_line import run, show
from benchmarks.result import BenchmarkResult, Column
from npmatch.cli.shared import DeviceOption, JsonOption, check_device
from npmatch.errors import NPMatchError
from npmatch.training.display import counting

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
    """`npmatch serve` in a process of its own."""

    port: int
    token: str
    pid: int

    def megabytes(self) -> float:
        """Resident memory of the process."""
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(self.pid)], capture_output=True, text=True, check=True)
        return int(shown.stdout) / 1024


def bench_serve(
    folder: Path | None,
    requests: int = 10_000,
    clients: int = 16,
    device: str | None = None,
) -> BenchmarkResult:
    """Requests predictions by `clients` at a time, then by many more clients than the page has places for."""
    if folder is not None and not (folder / "config.json").is_file():
        raise NPMatchError(f"{folder}: no such run, or not a finished one")
    pictures = make_pictures()
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as scratch, serving(folder or small_run(Path(scratch)), device) as server:
        ask_all(server, pictures, max(clients, requests // STRETCHES), clients)  # warms up: libraries, caches, arenas
        before = server.megabytes()
        with counting("requests", requests) as advance:
            for done in range(0, requests, -(-requests // STRETCHES)):
                count = min(-(-requests // STRETCHES), requests - done)
                answers = ask_all(server, pictures, count, clients)
                rows.append({"what": f"{done + 1}–{done + count}", **answers, "megabytes": server.megabytes()})
                advance(count)
        rows.append({"what": "flood", **ask_all(server, pictures, 4 * FLOOD, FLOOD), "megabytes": server.megabytes()})
    return BenchmarkResult(
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
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\w+)", line)
        if not found:
            problem = process.stderr.read() if process.stderr else ""
            raise NPMatchError(problem.strip().removeprefix("npmatch: ") or f"{run}: the page did not start")
        server = Server(int(found[1]), found[2], process.pid)
        wait_for_images(server)
        yield server
    finally:
        process.terminate()
        process.communicate(timeout=30)


def wait_for_images(server: Server) -> None:
    """Waits until the model has looked at all unlabelled images: memory grows until then, as it should."""
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
    """Requests `count` predictions, `clients` at a time: how many were answered, refused or failed, and how fast."""

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
    """Sends one request on a connection of its own; returns its status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.request(method, path, body, {"authorization": f"Bearer {server.token}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def make_pictures(count: int = 64, side: int = 96) -> list[bytes]:
    """PNG files of noise, all different."""
    from PIL import Image

    draws = np.random.default_rng(0)
    files = []
    for _ in range(count):
        buffer = io.BytesIO()
        Image.fromarray(draws.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(buffer, "PNG")
        files.append(buffer.getvalue())
    return files


def small_run(folder: Path) -> Path:
    """A run on digits, hardly trained, because the page is measured and not the model."""
    from npmatch.runs.fit import fit

    return fit("digits-40", out=folder / "run", quiet=True, device="cpu", overrides={"training.iterations": 10}).folder


def main(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Folder of a finished run; default: a run on digits, hardly trained."),
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Number of images to predict.")] = 10_000,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Number of requests at a time.")] = 16,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load test of the web page: response times and memory.

    Counts the requests that were answered, refused and failed.
    """
    show(bench_serve(folder, requests, concurrency, check_device(device)), as_json)


if __name__ == "__main__":
    sys.exit(run(main))
