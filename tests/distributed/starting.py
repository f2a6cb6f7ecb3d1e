"""Processes for tests of several ranks, forked from one that has imported everything, to import it only once."""

import faulthandler
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

# What a rank imports by the end of its run. The fork server does not have the tests' folders on its path: it would
# silently leave out the workers' own modules, and with them all that they import.
PRELOAD = [
    "npmatch.cli.train", "npmatch.cli.predict", "npmatch.runs.fit", "npmatch.report.page", "sklearn.datasets",
    "torch._dynamo", "matplotlib.figure", "pyarrow.parquet",
]  # fmt: skip


def run_together(target: Callable[..., None], arguments: list[tuple], seconds: float = 240) -> None:
    """Calls `target` in one process for each tuple of arguments, all at once; each must exit with code 0 in time.

    Once one has failed the others would wait for it in vain: all are killed, and the test shows what they printed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{number}.log" for number in range(len(arguments))]
        processes = [
            context.Process(target=call_logged, args=(log, seconds, target, each))
            for log, each in zip(logs, arguments, strict=True)
        ]
        for process in processes:
            process.start()
        while any(process.exitcode is None for process in processes) and time.monotonic() < deadline + 5:
            if any(process.exitcode for process in processes):
                break
            wait([process.sentinel for process in processes if process.exitcode is None], timeout=1)
        codes = [process.exitcode for process in processes]  # None: still running
        for process in processes:
            process.kill()
            process.join()
        printed = "".join(f"\n--- {each}\n{log.read_text()}" for log, each in zip(logs, arguments, strict=True))
    assert codes == [0] * len(codes), f"exit codes {codes} after at most {seconds} s{printed}"


def call_logged(log: Path, seconds: float, target: Callable[..., None], arguments: tuple) -> None:
    """Calls `target` with its output in a file; after `seconds` writes where every thread is, and exits."""
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.dump_traceback_later(seconds, exit=True)
    target(*arguments)
