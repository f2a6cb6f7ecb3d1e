"""Processes for tests that need one of their own, forked from one that has imported everything only once."""

import faulthandler
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

# What a rank imports by the end of its run. The fork server does not have the tests' folders on its path: it would
# silently leave out the workers' own modules, and with them all that they import.
PRELOAD = [
    "npmatch.cli.train", "npmatch.cli.predict", "npmatch.runs.fit", "npmatch.report.page", "sklearn.datasets",
    "torch._dynamo", "matplotlib.figure", "pyarrow.parquet",
]  # fmt: skip


def process(target: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that calls `target`; it is not started yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context.Process(target=target, args=arguments)


@contextmanager
def started_command(log: Path, *words: str) -> Iterator[BaseProcess]:
    """The process of `npmatch WORDS` in one thread, with its output in a file; it does not outlive the context."""
    command = process(run_command, log, words)
    command.start()
    try:
        yield command
    finally:
        command.kill()
        command.join()


def run_command(log: Path, words: tuple[str, ...]) -> None:
    import torch

    from npmatch.cli import console_script

    torch.set_num_threads(1)
    write_output_to(log)
    sys.argv = ["npmatch", *words]
    console_script()


def run_together(target: Callable[..., None], arguments: list[tuple], seconds: float = 240) -> None:
    """Calls `target` in one process for each tuple of arguments, all at once; each must exit with code 0 in time.

    Once one has failed the others would wait for it in vain: all are killed, and the test shows what they printed.
    """
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{number}.log" for number in range(len(arguments))]
        processes = [
            process(call_logged, log, seconds, target, each) for log, each in zip(logs, arguments, strict=True)
        ]
        for one in processes:
            one.start()
        while any(one.exitcode is None for one in processes) and time.monotonic() < deadline + 5:
            if any(one.exitcode for one in processes):
                break
            wait([one.sentinel for one in processes if one.exitcode is None], timeout=1)
        codes = [one.exitcode for one in processes]  # None: still running
        for one in processes:
            one.kill()
            one.join()
        printed = "".join(f"\n--- {each}\n{log.read_text()}" for log, each in zip(logs, arguments, strict=True))
    assert codes == [0] * len(codes), f"exit codes {codes} after at most {seconds} s{printed}"


def call_logged(log: Path, seconds: float, target: Callable[..., None], arguments: tuple) -> None:
    """Calls `target` with its output in a file; after `seconds` writes where every thread is, and exits."""
    write_output_to(log)
    faulthandler.dump_traceback_later(seconds, exit=True)
    target(*arguments)


def write_output_to(log: Path) -> None:
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
